"""From a written configuration to an EngineCore: in this process for one rank, over worker processes for several."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from ascendd.artefact.manifest import check_tensor_parallel_size, is_artefact, read_manifest
from ascendd.artefact.weight_count import count_rank_weights
from ascendd.config.model_facts import ModelFacts, read_model_facts
from ascendd.config.plan import fit_measured
from ascendd.config.resolve import EngineConfig, check_parallel, resolve, share_of_rank
from ascendd.config.schema import InstanceConfig
from ascendd.engine.core import EngineCore
from ascendd.engine.exec.executor import Executor, InProcessExecutor
from ascendd.engine.exec.multiproc import MultiProcessExecutor
from ascendd.engine.runner.runner_report import tell_replaced
from ascendd.ipc.rank_messages import RankLoading
from ascendd.telemetry import log

# Load progress goes out at most this often; each report extends systemd's start timeout.
_PROGRESS_EVERY_S = 0.25
Report = Callable[[str, float], None]


def load(config: InstanceConfig, report: Report) -> tuple[EngineConfig, ModelFacts, EngineCore]:
    """Build the core from a written configuration; `report` is told phase and fraction."""
    report("reading the model", 0.0)
    folder = Path(config.model.path)
    facts = read_model_facts(folder)
    check_parallel(config, facts)
    parallel = config.parallel
    if is_artefact(folder):
        # Before any rank is started, since it is the same for all.
        check_tensor_parallel_size(folder, read_manifest(folder), parallel.tensor_parallel_size)
    elements = count_rank_weights(folder, facts, parallel.tensor_parallel_size, parallel.pipeline_parallel_size)
    build = _in_process if parallel.tensor_parallel_size * parallel.pipeline_parallel_size == 1 else _in_ranks
    engine_config, executor = build(config, facts, elements, report)
    try:
        core = EngineCore(engine_config, executor, facts.eos_token_ids)
        report("warming up", 0.97)
        core.warm_up()
        for adapter in config.model.adapters:
            core.load_adapter(adapter.name, adapter.path)
    except BaseException:
        executor.close()
        raise
    return engine_config, facts, core


def _in_process(
    config: InstanceConfig, facts: ModelFacts, elements: int | None, report: Report
) -> tuple[EngineConfig, Executor]:
    import torch

    from ascendd.device.detect import make_device
    from ascendd.engine.runner.model_runner import ModelRunner

    device = make_device(config.engine.device)
    engine_config = resolve(config, facts, device.facts, weight_elements=elements)
    torch.set_num_threads(engine_config.num_threads)
    torch.set_num_interop_threads(1)
    last = 0.0

    def loading(fraction: float) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _PROGRESS_EVERY_S or fraction >= 1.0:
            last = now
            report("loading", 0.95 * fraction)

    with device.naming_faults():
        runner = ModelRunner(engine_config, facts, device, loading)
        tell_replaced(runner.kernel_verdicts)
        report("measuring memory", 0.95)
        plan = fit_measured(
            engine_config.plan,
            activation_bytes=runner.profile(),
            free_bytes=device.memory_info().free_bytes,
            max_model_len=engine_config.max_model_len,
        )
        runner.set_num_blocks(plan.num_blocks)
        runner.capture_graphs()
    engine_config = msgspec.structs.replace(engine_config, plan=plan, num_blocks=plan.num_blocks)
    return engine_config, InProcessExecutor(runner)


def _in_ranks(
    config: InstanceConfig, facts: ModelFacts, elements: int | None, report: Report
) -> tuple[EngineConfig, Executor]:
    logger = log.get_logger("engine")
    world_size = config.parallel.tensor_parallel_size * config.parallel.pipeline_parallel_size
    report(f"starting {world_size} ranks", 0.0)
    num_threads = config.engine.num_threads or max(1, len(os.sched_getaffinity(0)) // world_size)
    executor = MultiProcessExecutor(config, num_threads=num_threads, vocab_size=facts.vocab_size)
    try:
        device = executor.device_facts()
        engine_config = resolve(config, facts, device, weight_elements=elements)
        fractions = [0.0] * world_size
        last = 0.0

        def loading(rank: int, message: RankLoading) -> None:
            nonlocal last
            fractions[rank] = message.fraction
            if time.monotonic() - last >= _PROGRESS_EVERY_S:
                last = time.monotonic()
                done = sum(fraction >= 1.0 for fraction in fractions)
                report(f"loading, {done} of {world_size} ranks done", 0.95 * min(fractions))

        loaded = executor.load(msgspec.json.encode(engine_config), loading)
        report("measuring memory", 0.95)
        profiled = executor.profile()
        free = min(one.free_bytes for one in profiled)
        plan = fit_measured(
            engine_config.plan,
            activation_bytes=max(one.activation_bytes for one in profiled),
            free_bytes=share_of_rank(msgspec.structs.replace(device, free_bytes=free), world_size).free_bytes,
            max_model_len=engine_config.max_model_len,
        )
        for rank, (weights, memory) in enumerate(zip(loaded, profiled, strict=True)):
            logger.info(
                "engine.rank_memory", of_rank=rank, pid=executor.ranks[rank].pid, load_s=weights.seconds,
                weights_bytes=weights.weights_bytes, planned_weights_bytes=plan.weights_bytes,
                activation_bytes=memory.activation_bytes, planned_reserve_bytes=engine_config.plan.reserve_bytes,
                kv_bytes=plan.kv_bytes, free_bytes=memory.free_bytes,
            )  # fmt: skip
        executor.set_num_blocks(plan.num_blocks)
    except BaseException:
        executor.close()
        raise
    return msgspec.structs.replace(engine_config, plan=plan, num_blocks=plan.num_blocks), executor
