"""What `ascendd instance` makes of flags and editors: a configuration that is checked before it is written."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascendd.config.schema import InstanceConfig
from ascendd.errors import AscenddError, HostError, PreflightFailed, UsageError
from ascendd.host.account import read_account, refused
from ascendd.host.cpu_list import format_cpus
from ascendd.host.files import HostFiles
from ascendd.instances.chips import Topology, parse_devices
from ascendd.instances.draft import (
    FIRST_METRICS_PORT,
    FIRST_PORT,
    check_ports,
    choose_devices,
    choose_port,
    devices_of,
    draft_text,
    read_others,
    users_of,
)
from ascendd.instances.store import SERVICE, InstanceStore, hidden_from_service, key_path

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Draft:
    """A new instance as it would be written."""

    config: InstanceConfig
    text: str
    new_key: bool
    notes: list[str]


def make_draft(
    store: InstanceStore, found: Topology, name: str, args: Sequence[str], *, devices: str | None, keys: bool | None
) -> Draft:
    """Return the draft of a new instance from flags of serve. Raises UsageError, HostError."""
    from ascendd.cli.serve import build_config
    from ascendd.cli.serve_flags import parse
    from ascendd.config.load import load_text

    parsed = parse(args)
    others = read_others(store)
    raw = {section: dict(values) for section, values in parsed.raw.items()}
    raw["model"]["path"] = str(Path(raw["model"]["path"]).absolute())
    engine, parallel = raw.setdefault("engine", {}), raw.setdefault("parallel", {})
    # Written down, so that a server whose driver is gone refuses to start instead of serving from its CPU.
    engine.setdefault("device", "npu" if found.chips else "cpu")
    if engine["device"] in ("auto", "npu") and found.chips:
        _place(found, others, parallel, devices)
    elif devices is not None:
        why = "--device says so" if found.chips else "no NPU is on the bus of this host"
        raise UsageError(f"--devices {devices}: this instance is on the CPU, since {why}")
    listen, metrics = raw.setdefault("listen", {}), raw.setdefault("metrics", {})
    used = [port for other in others.values() for port in (other.listen.port, other.metrics.port)]
    listen.setdefault("port", choose_port(FIRST_PORT, used))
    metrics.setdefault("port", choose_port(FIRST_METRICS_PORT, used))
    is_open = listen.get("host", "127.0.0.1") not in _LOOPBACK
    new_key = "api_key_file" not in listen and (is_open if keys is None else keys)
    if new_key:
        listen["api_key_file"] = key_path(name)
    build_config(args)  # its errors name flags, those of the file would name keys
    order = ("model", "listen", "metrics", "parallel", "engine")
    ordered = {key: raw[key] for key in sorted(raw, key=lambda key: order.index(key) if key in order else len(order))}
    text = draft_text(name, {key: values for key, values in ordered.items() if values})
    return Draft(load_text(text, f"the file of {name}"), text, new_key, parsed.notes)


def _place(
    found: Topology, others: Mapping[str, InstanceConfig], parallel: dict[str, Any], devices: str | None
) -> None:
    """Fill in devices and how the model is spread over them."""
    stages = parallel.get("pipeline_parallel_size", 1)
    if devices is not None:
        parallel["devices"] = parse_devices(devices)
        if "tensor_parallel_size" not in parallel and len(parallel["devices"]) % stages == 0:
            parallel["tensor_parallel_size"] = len(parallel["devices"]) // stages
    if "devices" not in parallel:
        parallel["devices"] = choose_devices(found, others, parallel.get("tensor_parallel_size", 1) * stages)
    found.by_number(parallel["devices"])


def check_draft(
    files: HostFiles, store: InstanceStore, found: Topology, name: str, config: InstanceConfig, *, force: bool
) -> list[str]:
    """Return what the operator should know. Raises the first error in the way, unless `force` makes notes of them."""
    others = read_others(store, name)
    notes: list[str] = []
    checks: tuple[Callable[[], str | None], ...] = (
        lambda: check_ports(config, others),
        lambda: _check_devices(found, others, config),
        lambda: _check_folder(files, config.model.path),
        lambda: _check_plan(files, found, config),
    )
    for check in checks:
        try:
            said = check()
        except AscenddError as error:
            if not force:
                raise
            said = f"--force: {error.message}"
        notes += [said] if said else []
    return notes + _link_notes(found, config)


def _check_devices(found: Topology, others: Mapping[str, InstanceConfig], config: InstanceConfig) -> None:
    if not found.chips or config.engine.device == "cpu":
        return
    found.by_number(devices_of(config))
    taken = users_of(devices_of(config), others)
    if taken:
        said = ", ".join(f"{device} is that of instance {other}" for device, other in taken.items())
        raise UsageError(
            f"device {said}", remedy="Name other devices; `ascendd instance topology` shows the free ones."
        )


def _check_folder(files: HostFiles, path: str) -> None:
    """Raise where the service could not read the model, though root can."""
    why = hidden_from_service(path)
    if why is None:
        account = read_account(files, SERVICE)
        why = refused(files, account, (), (path,)).get(path) if account is not None else None
    if why is not None:
        raise HostError(
            f"{path}: the service cannot read this model: {why}",
            remedy=f"Put it below /var/lib/ascendd/models, and `chown -R {SERVICE}: FOLDER`.",
        )


def _check_plan(files: HostFiles, found: Topology, config: InstanceConfig) -> str:
    """Return the plan in words. Raises where weights and KV cache do not fit."""
    import msgspec

    from ascendd.checks.plan_fits import PlanFits
    from ascendd.config.model_facts import read_model_facts
    from ascendd.config.quantity import format_bytes
    from ascendd.config.resolve import resolve
    from ascendd.preflight.check import Verdict
    from ascendd.preflight.context import CheckContext, CheckRequest

    facts = read_model_facts(Path(config.model.path))
    if found.chips and config.engine.device != "cpu":
        request = CheckRequest(config_json=msgspec.json.encode(config).decode(), root=files.root or "/")
        result = PlanFits().run(CheckContext(request))
        if result.verdict is Verdict.FAIL:
            said = f"the plan of this instance does not fit: {result.summary}"
            raise PreflightFailed(said, remedy=result.remedy.text if result.remedy else None)
        return f"plan: {result.summary}"
    from ascendd.device.detect import make_device

    plan = resolve(config, facts, make_device("cpu").facts).plan
    return f"plan: {format_bytes(plan.weights_bytes)} weights + {format_bytes(plan.kv_bytes)} KV cache"


def _link_notes(found: Topology, config: InstanceConfig) -> list[str]:
    from ascendd.host.npu_topology import FAST

    if found.links is None or not found.chips or config.engine.device == "cpu":
        return []
    nodes = frozenset(chip.node for chip in found.chips if chip.number in devices_of(config))
    slow = sorted(pair for pair, word in found.links.between(nodes).items() if word not in FAST)
    return [f"devices {a} and {b} reach each other only by {found.links.links[a, b]}" for a, b in slow[:1]]


def edited_text(old: str, name: str, source: Path | None) -> str:
    """Return the new text of a file: that of `source`, else what the operator's editor leaves. Raises UsageError."""
    if source is not None:
        try:
            return sys.stdin.read() if str(source) == "-" else source.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--from {source} cannot be read: {error}") from error
    if not sys.stdin.isatty():
        raise UsageError("no editor can be used, since the input is no terminal", remedy="Add --from FILE.")
    editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    with tempfile.NamedTemporaryFile("w+", prefix=f"{name}-", suffix=".yaml", encoding="utf-8") as file:
        file.write(old)
        file.flush()
        if subprocess.run([*editor, file.name], check=False).returncode != 0:
            raise UsageError(f"{editor[0]} ended with an error, so nothing was changed")
        # Editors replace the file, so it is opened anew by its name.
        return Path(file.name).read_text(encoding="utf-8")


def describe_topology(found: Topology, users: Mapping[int, str]) -> tuple[dict[str, Any], list[str]]:
    """Return the chips and their links as plain data and as lines."""
    chips = [
        {
            "device": chip.number, "node": f"/dev/davinci{chip.node}", "name": chip.name, "health": chip.health,
            "bus_id": chip.bus_id, "memory_mb": chip.memory_mb, "cpus": format_cpus(chip.cpus),
            "numa_nodes": sorted(chip.numa_nodes), "instance": users.get(chip.number),
        }
        for chip in found.chips
    ]  # fmt: skip
    if not chips:
        return {"chips": [], "links": None}, ["there is no NPU on the bus of this host"]
    lines = ["device  node            name      health  bus           memory/MB  numa  cpus near     instance"]
    lines += [
        f"{chip.number:6}  /dev/davinci{chip.node:<2}  {chip.name or '?':8}  {chip.health or '?':6}  "
        f"{chip.bus_id or '?':12}  {chip.memory_mb or '?':>9}  {','.join(map(str, sorted(chip.numa_nodes))) or '?':4}  "
        f"{format_cpus(chip.cpus) or '?':12}  {users.get(chip.number, 'free')}"
        for chip in found.chips
    ]
    if found.links is None:
        return {"chips": chips, "links": None}, [*lines, "npu-smi does not say how the chips reach each other"]
    order = found.links.chips
    width = max(map(len, found.links.links.values())) + 2
    lines += ["", "links by /dev/davinciN", " " * 4 + "".join(f"{node:<{width}}" for node in order)]
    lines += [f"{a:<4}" + "".join(f"{found.links.links[a, b]:<{width}}" for b in order) for a in order]
    links = [{"nodes": [a, b], "link": word} for (a, b), word in sorted(found.links.links.items()) if a < b]
    return {"chips": chips, "links": links}, [line.rstrip() for line in lines]
