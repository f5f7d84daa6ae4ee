"""Which chips an instance has: one answer for its engine, for the proof that they are free, and for quarantine."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ascendd.config.schema import InstanceConfig

_DEVICES = re.compile(r"\d{1,4}(,\d{1,4})*", re.ASCII)


def npu_devices(config: InstanceConfig, environ: Mapping[str, str]) -> list[int]:
    """Return logical numbers: parallel.devices, else the first ones that the unit leaves the instance, else of all."""
    world_size = config.parallel.tensor_parallel_size * config.parallel.pipeline_parallel_size
    return config.parallel.devices or _visible(environ, world_size) or list(range(world_size))


def _visible(environ: Mapping[str, str], world_size: int) -> list[int]:
    text = environ.get("ASCEND_RT_VISIBLE_DEVICES", "")
    return [int(part) for part in text.split(",")][:world_size] if _DEVICES.fullmatch(text) else []
