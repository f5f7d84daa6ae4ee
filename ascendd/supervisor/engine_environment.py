"""What the process of an engine gets in its environment, whichever backend it is of."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ascendd.config.schema import InstanceConfig
from ascendd.supervisor.npu_environment import npu_environment

_DEVICES = re.compile(r"\d{1,4}(,\d{1,4})*", re.ASCII)


def engine_environment(
    config: InstanceConfig, instance: str, *, kind: str, environ: Mapping[str, str], num_cores: int
) -> dict[str, str]:
    """Return what only the engine gets; a vendor's variable that the unit sets keeps its value."""
    world_size = config.parallel.tensor_parallel_size * config.parallel.pipeline_parallel_size
    num_threads = config.engine.num_threads or max(1, num_cores // world_size)
    env = {"OMP_NUM_THREADS": str(num_threads)}
    if kind == "npu":
        devices = config.parallel.devices or _visible_devices(environ, world_size) or list(range(world_size))
        env |= npu_environment(environ, devices=devices, instance=instance)
    if kind == "cuda" and config.parallel.devices:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, config.parallel.devices))
    return env


def _visible_devices(environ: Mapping[str, str], world_size: int) -> list[int]:
    """Return the first chips that the unit leaves this instance; none where it says nothing of them."""
    text = environ.get("ASCEND_RT_VISIBLE_DEVICES", "")
    return [int(part) for part in text.split(",")][:world_size] if _DEVICES.fullmatch(text) else []
