"""From a checked configuration to a running instance: what must hold before the first process is started."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ascendd.config.schema import InstanceConfig, ListenSection
from ascendd.errors import AscenddError
from ascendd.host.systemd import Notifier, credential, listen_fds, watchdog_interval_s
from ascendd.ipc.control_path import incidents_dir, socket_to_bind
from ascendd.ipc.messages import Role
from ascendd.supervisor.backend import backend_of
from ascendd.supervisor.control import Control
from ascendd.supervisor.inputs import check_inputs
from ascendd.supervisor.log_pipe import LogPipe
from ascendd.supervisor.phase import Outcome
from ascendd.supervisor.sockets import address_of, differing_port, open_listener
from ascendd.supervisor.spec import ChildSpec, build_specs, device_kind, usable_cores
from ascendd.supervisor.supervisor import Supervisor
from ascendd.telemetry import log
from ascendd.telemetry.rotating_log import check_log_file

# What SetCredential= of the unit gives where the instance has no file of keys. An empty file is an error, not this.
_NO_KEYS = b"no-keys"
# More than the limits of all checks of the gate together: each check has one of its own, so this start ends by itself.
_GATE_S = 600.0
_IMPORTS_S = 60.0


def run_instance(
    config: InstanceConfig,
    instance: str,
    *,
    specs: Mapping[Role, ChildSpec] | None = None,
    gate: Callable[[InstanceConfig], object] | None = None,
    reload: Callable[[], InstanceConfig] | None = None,
) -> Outcome:
    """
    Run one instance until it is told to end or fails.

    `specs` replaces what the children are started with, `gate` the preflight checks; `reload` reads the instance file
    anew on SIGHUP. Raises PreflightFailed,
    ConfigError, ModelError or HostError before anything was started; a failure after that is in the Outcome.
    """
    faulthandler.enable()  # a missed watchdog is a SIGABRT, and this writes where the loop was stuck
    notifier = Notifier()
    log.configure(config.log, instance=instance, role="supervisor")
    try:
        return _run(complete(config), instance, specs, gate or preflight, notifier, reload=reload)
    except AscenddError as error:
        notifier.status(f"failed: {error.code} {error.message}")
        raise


def complete(config: InstanceConfig) -> InstanceConfig:
    """Return `config` with absolute paths, the model's name, and the keys that the unit loads where it names none."""
    path = Path(os.path.abspath(config.model.path))  # noqa: PTH100 - a link keeps its name: it may be the model's
    adapters = [
        msgspec.structs.replace(adapter, path=os.path.abspath(adapter.path))  # noqa: PTH100 - as above
        for adapter in config.model.adapters
    ]
    name = config.model.name or path.name
    model = msgspec.structs.replace(config.model, path=str(path), name=name, adapters=adapters)
    return msgspec.structs.replace(config, model=model, listen=_with_keys(config.listen))


def _with_keys(listen: ListenSection) -> ListenSection:
    """Return `listen` with the key file of LoadCredential=api_keys:... where the instance file names none."""
    keys = credential("api_keys", os.environ) if listen.api_key_file is None else None
    if keys is None or keys.read_bytes().strip() == _NO_KEYS:
        return listen
    return msgspec.structs.replace(listen, api_key_file=str(keys))


def _run(
    config: InstanceConfig,
    instance: str,
    specs: Mapping[Role, ChildSpec] | None,
    gate: Callable[[InstanceConfig], object],
    notifier: Notifier,
    *,
    reload: Callable[[], InstanceConfig] | None = None,
) -> Outcome:
    kind = device_kind(config)
    notifier.status("preflight")
    notifier.extend_timeout(_GATE_S)
    backend_of(config).check(config)
    check_inputs(config)
    doctor = gate(config)
    # From here on each sign of progress extends it; the first comes once the engine's interpreter has its imports.
    notifier.extend_timeout(config.health.load_deadline_s + _IMPORTS_S)
    if config.log.file is not None:
        check_log_file(Path(config.log.file))
    if specs is None:
        specs = build_specs(config, instance, kind=kind, environ=os.environ, num_cores=usable_cores())
    with contextlib.ExitStack() as stack:
        inherited = listen_fds()
        listeners = _listen(config, inherited, stack)
        log_reader = None
        if Role.LOGWRITER in specs:
            pipe = LogPipe()
            stack.callback(pipe.restore)
            pipe.redirect()
            log.configure(config.log, instance=instance, role="supervisor", stream=pipe.stream)
            log_reader = pipe.reader
        logger = log.get_logger("supervisor")
        for name, listener in listeners.items():
            logger.info(
                "supervisor.listening", listener=name, address=address_of(listener), by_systemd=name in inherited
            )
        if "api" in inherited and (other := differing_port(listeners["api"], config.listen.port)) is not None:
            logger.warning("supervisor.listener_differs", reason=other)
        supervisor = Supervisor(
            config,
            instance,
            specs,
            listeners,
            device_kind=kind,
            log_reader=log_reader,
            notifier=notifier,
            watchdog_s=watchdog_interval_s(),
            control=Control(
                socket_to_bind(instance, os.environ),
                None if reload is None else lambda: complete(reload()),
                doctor if isinstance(doctor, Mapping) else None,
                incidents_dir(instance, os.environ),
            ),
            activated="api" in inherited,
        )
        return asyncio.run(supervisor.run())


def preflight(config: InstanceConfig) -> dict[str, Any]:
    """
    Run the checks that decide within seconds; a warning is logged.

    Returns the worst verdict with the checks behind it, for `ascendd status`. Raises PreflightFailed for a failed one.
    """
    from ascendd.preflight.check import Verdict
    from ascendd.preflight.gate import run_gate

    logger = log.get_logger("supervisor")
    warned: list[str] = []
    for result in run_gate(config, but=backend_of(config).skipped_checks):
        if result.verdict in (Verdict.WARN, Verdict.ERROR):
            logger.warning(
                "supervisor.check", check=result.check_id, verdict=result.verdict.name, summary=result.summary
            )
            warned.append(result.check_id)
    return {"verdict": "warnings" if warned else "pass", "checks": warned}


def _listen(config: InstanceConfig, inherited: dict[str, int], stack: contextlib.ExitStack) -> dict[str, socket.socket]:
    listeners = {"api": stack.enter_context(open_listener("api", config.listen.host, config.listen.port, inherited))}
    if config.metrics.enabled:
        metrics = open_listener("metrics", config.metrics.host, config.metrics.port, inherited)
        listeners["metrics"] = stack.enter_context(metrics)
    return listeners
