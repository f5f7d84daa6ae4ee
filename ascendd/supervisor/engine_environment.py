"""What the process of an engine gets in its environment, whichever backend it is of."""

from __future__ import annotations

from collections.abc import Mapping

from ascendd.config.schema import InstanceConfig
from ascendd.supervisor.devices import npu_devices
from ascendd.supervisor.npu_environment import npu_environment


def engine_environment(
    config: InstanceConfig, instance: str, *, kind: str, environ: Mapping[str, str], num_cores: int
) -> dict[str, str]:
    """Return what only the engine gets; a vendor's variable that the unit sets keeps its value."""
    world_size = config.parallel.tensor_parallel_size * config.parallel.pipeline_parallel_size
    num_threads = config.engine.num_threads or max(1, num_cores // world_size)
    env = {"OMP_NUM_THREADS": str(num_threads)}
    if kind == "npu":
        env |= npu_environment(environ, devices=npu_devices(config, environ), instance=instance)
    if kind == "cuda" and config.parallel.devices:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, config.parallel.devices))
    return env
