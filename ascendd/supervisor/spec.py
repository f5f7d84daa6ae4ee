"""ChildSpec: what a child process is started with. One table holds every environment variable the daemon sets."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ascendd.config.schema import InstanceConfig
from ascendd.host.systemd import ENVIRONMENT as SYSTEMD_ENVIRONMENT
from ascendd.ipc.messages import Role
from ascendd.supervisor.backend import backend_of
from ascendd.telemetry.log import INSTANCE_VARIABLE

# Set for every child. TORCH_DEVICE_BACKEND_AUTOLOAD=0: torch must not import vendor packages unasked.
_EVERY_CHILD = {
    "PYTHONFAULTHANDLER": "1",  # SIGABRT from the health monitor dumps all stacks
    "PYTHONSAFEPATH": "1",  # modules of the working directory never shadow ours
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    # A team that sleeps between two operators of a step pays a wake-up for each of some 300: a third of the time of a
    # small model. One that spins for ever starves the other processes. So: spin for a fraction of a millisecond.
    "GOMP_SPINCOUNT": "100000",
    "KMP_BLOCKTIME": "1",
    # Where torch computes linears with oneDNN it keeps what it compiled for each shape, and each number of tokens is
    # one: 1,024 of them by default, over 100 MB that look like a leak for hours. A step needs some ten.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    "LRU_CACHE_CAPACITY": "64",
}
_LIGHT_CHILD = {"OMP_NUM_THREADS": "1"}
_API = {"TOKENIZERS_PARALLELISM": "false"}
_SECRET_NAME = re.compile(r"(?i)(api_?key|token|secret|password|passwd|credentials?)$")

# The engine leaves the processor to the API where both want it: a late step is a late token, a late API is an outage.
ENGINE_NICE = 5


@dataclass(frozen=True)
class ChildSpec:
    """
    How one role is started; the descriptors are added to `argv` by the process launcher.

    `listener` names the socket that it inherits. An `essential` child that cannot be restarted fails the instance.
    """

    role: Role
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    listener: str | None = None
    essential: bool = True
    loads_device: bool = False
    reads_log: bool = False
    nice: int = 0


def device_kind(config: InstanceConfig, dev: Path = Path("/dev")) -> str:
    """Return `cpu`, `npu` or `cuda` without asking a driver: as configured, else by the device nodes under `dev`."""
    if config.engine.device != "auto":
        return config.engine.device
    if any(dev.glob("davinci[0-9]*")):
        return "npu"
    return "cuda" if any(dev.glob("nvidia[0-9]*")) else "cpu"


def build_specs(
    config: InstanceConfig, instance: str, *, kind: str, environ: Mapping[str, str], num_cores: int
) -> dict[Role, ChildSpec]:
    """Return the spec of every child that `config` asks for, in the order they are started."""
    base = {**inherited_environment(environ), **_EVERY_CHILD, INSTANCE_VARIABLE: instance}

    def argv(role: Role) -> tuple[str, ...]:
        return (sys.executable, "-m", "ascendd", f"_{role.value}")

    specs: dict[Role, ChildSpec] = {}
    if config.log.file is not None:
        specs[Role.LOGWRITER] = ChildSpec(
            Role.LOGWRITER, argv(Role.LOGWRITER), base | _LIGHT_CHILD, essential=False, reads_log=True
        )
    if config.metrics.enabled:
        specs[Role.METRICS] = ChildSpec(
            Role.METRICS, argv(Role.METRICS), base | _LIGHT_CHILD, listener="metrics", essential=False
        )
    backend = backend_of(config)
    engine = backend.environment(config, instance, kind=kind, environ=environ, num_cores=num_cores)
    specs[Role.ENGINE] = ChildSpec(
        Role.ENGINE,
        (sys.executable, "-m", "ascendd", backend.process),
        base | engine,
        loads_device=True,
        nice=ENGINE_NICE,
    )
    specs[Role.API] = ChildSpec(Role.API, argv(Role.API), base | _LIGHT_CHILD | _API, listener="api")
    return specs


def inherited_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what children take over: all but systemd's links to the supervisor and what looks like a secret."""
    return {
        name: value
        for name, value in environ.items()
        if name not in SYSTEMD_ENVIRONMENT and not _SECRET_NAME.search(name)
    }


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))
