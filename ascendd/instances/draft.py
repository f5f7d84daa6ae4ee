"""A new instance's file: what the operator asked for, and for the rest chips and ports that no other instance has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from ascendd.config.load import load_text
from ascendd.config.schema import InstanceConfig
from ascendd.errors import AscenddError, HostError, UsageError
from ascendd.instances.chips import Topology
from ascendd.instances.store import InstanceStore

FIRST_PORT, FIRST_METRICS_PORT = 8000, 9475
_MOST_PORTS = 1000


def read_others(store: InstanceStore, but: str = "") -> dict[str, InstanceConfig]:
    """Return the instances that can be read, but one; a broken file is the business of `ascendd config check`."""
    found = {}
    for name in store.names():
        if name == but:
            continue
        try:
            found[name] = load_text(store.read(name), name)
        except AscenddError:
            continue
    return found


def devices_of(config: InstanceConfig) -> list[int]:
    """Return the devices that an instance uses on an NPU host."""
    parallel = config.parallel
    return parallel.devices or list(range(parallel.tensor_parallel_size * parallel.pipeline_parallel_size))


def users_of(devices: Iterable[int], others: Mapping[str, InstanceConfig]) -> dict[int, str]:
    """Return device -> another instance that has it."""
    owners = {device: name for name, config in others.items() if _is_npu(config) for device in devices_of(config)}
    return {device: owners[device] for device in devices if device in owners}


def choose_devices(topology: Topology, others: Mapping[str, InstanceConfig], count: int) -> list[int]:
    """Return the first `count` free devices, of one NUMA node where there are so many. Raises HostError."""
    numbers = [chip.number for chip in topology.chips]
    taken = users_of(numbers, others)
    free = [chip for chip in topology.chips if chip.number not in taken]
    if len(free) < count:
        used = ", ".join(f"{device} by {name}" for device, name in taken.items()) or "none is taken"
        raise HostError(
            f"{count} free device(s) are wanted and {len(free)} are free of {len(numbers)} (in use: {used})",
            remedy="Name devices with --devices, or delete an instance that is not needed.",
        )
    groups: dict[frozenset[int], list[int]] = {}
    for chip in free:
        groups.setdefault(chip.cpus, []).append(chip.number)
    near = next((group for group in groups.values() if len(group) >= count), [chip.number for chip in free])
    return near[:count]


def choose_port(first: int, taken: Iterable[int]) -> int:
    """Return the first port from `first` on that no other instance has. Raises HostError."""
    used = set(taken)
    port = next((port for port in range(first, min(first + _MOST_PORTS, 65536)) if port not in used), None)
    if port is None:
        raise HostError(f"no port from {first} on is free of other instances", remedy="Name one with --port.")
    return port


def check_ports(config: InstanceConfig, others: Mapping[str, InstanceConfig]) -> None:
    """Raise UsageError where another instance has one of the ports."""
    mine = _ports(config)
    for name, other in others.items():
        for port, key in mine.items():
            if port in _ports(other):
                raise UsageError(
                    f"{key} {port} is that of instance {name}",
                    remedy=f"Choose another {key}; `ascendd instance list` shows those in use.",
                )


def draft_text(name: str, raw: Mapping[str, Any]) -> str:
    """Return the YAML of a new instance; `raw` is plain data that config.load has taken."""
    head = (
        f"# Instance {name}. `ascendd instance edit {name}` changes it and checks it first; `systemctl restart\n"
        f"# ascendd@{name}` puts it into use. Every key: man 5 ascendd.yaml.\n"
    )
    return head + yaml.safe_dump(dict(raw), sort_keys=False, default_flow_style=False, allow_unicode=True)


def _is_npu(config: InstanceConfig) -> bool:
    return config.engine.device in ("auto", "npu")


def _ports(config: InstanceConfig) -> dict[int, str]:
    metrics = {config.metrics.port: "metrics.port"} if config.metrics.enabled and config.metrics.port else {}
    return metrics | ({config.listen.port: "listen.port"} if config.listen.port else {})
