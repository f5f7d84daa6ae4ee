"""What of a changed instance file is taken up while the instance runs, and what needs a restart. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from ascendd.config.resolve import lora_enabled
from ascendd.config.schema import InstanceConfig

# Keys, or whole sections, that a running instance takes up.
RELOADABLE = (
    "admission.max_queue",
    "admission.request_timeout_s",
    "admission.restart_wait_s",
    "log.level",
    "model.adapters",
    "log.stats_interval_s",
    "recovery.drain_timeout_s",
)


@dataclass(frozen=True)
class Reload:
    """The configuration to go on with, the keys that were taken up, and those that need a restart."""

    config: InstanceConfig
    applied: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()


def plan_reload(running: InstanceConfig, wanted: InstanceConfig) -> Reload:
    """Return `running` with what may change of `wanted`, and the names of all keys that differ."""
    old, new = _flat(msgspec.to_builtins(running)), _flat(msgspec.to_builtins(wanted))
    changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    # An engine that was started without adapters has no room for any.
    fixed = () if lora_enabled(running) else ("model.adapters",)
    applied = tuple(key for key in changed if key in RELOADABLE and key not in fixed)
    config = running
    for key in applied:
        section, _, name = key.partition(".")
        part = msgspec.structs.replace(getattr(config, section), **{name: getattr(getattr(wanted, section), name)})
        config = msgspec.structs.replace(config, **{section: part})
    return Reload(config, applied, tuple(key for key in changed if key not in applied))


def _flat(raw: dict[str, Any]) -> dict[str, Any]:
    return {f"{section}.{key}": value for section, part in raw.items() for key, value in (part or {}).items()}
