"""InstanceConfig + ModelFacts + DeviceFacts -> EngineConfig: all numbers final, each with its origin."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ascendd.config.model_facts import ModelFacts
from ascendd.config.plan import DTYPE_BYTES, DeviceFacts, MemoryPlan, plan_memory
from ascendd.config.quantity import parse_bytes
from ascendd.config.schema import InstanceConfig
from ascendd.errors import ConfigInvalid, PlanDoesNotFit

DEFAULT_BATCHED_TOKENS = {"cpu": 512}


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine runs with; `origins` says where each value came from, for `config show --resolved`."""

    model_path: str
    model_name: str
    device: str
    dtype: str
    kv_cache_dtype: str
    block_size: int
    num_blocks: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_prefix_caching: bool
    enforce_eager: bool
    tensor_parallel_size: int
    pipeline_parallel_size: int = 1
    num_threads: int
    seed: int | None
    rope_switch_length: int | None = None
    plan: MemoryPlan
    origins: dict[str, str]
    # 0: LoRA is off.
    max_loras: int = 0
    max_lora_rank: int = 64
    max_cpu_loras: int = 16
    # What projections are kept as where that is not `dtype`, in which they compute.
    weight_dtype: str | None = None


def resolve(
    config: InstanceConfig,
    facts: ModelFacts,
    device: DeviceFacts,
    *,
    weight_elements: int | None = None,
    reserve_bytes: int | None = None,
) -> EngineConfig:
    """
    Compute every number; the keyword arguments are those of plan_memory.

    Raises PlanDoesNotFit, ModelUnsupported (tp size) or ConfigInvalid (context length, block size).
    """
    engine, tp_size = config.engine, config.parallel.tensor_parallel_size
    pp_size = config.parallel.pipeline_parallel_size
    check_parallel(config, facts)
    device = share_of_rank(device, tp_size * pp_size)
    origins: dict[str, str] = {}

    def pick(name: str, written: object, default: object, why: str) -> object:
        origins[name] = "file" if written is not None else why
        return default if written is None else written

    dtype = resolve_dtype(config.model.dtype, facts, device)
    origins["dtype"] = "file" if config.model.dtype != "auto" else _why_dtype(dtype, facts, device)
    weight_dtype = None if engine.weight_dtype in {"auto", dtype} else engine.weight_dtype
    origins["weight_dtype"] = "file" if engine.weight_dtype != "auto" else "same as dtype"
    if weight_dtype is not None:
        _check_weight_dtype(weight_dtype, config.model.dtype, device)
        dtype, origins["dtype"] = "float32", "what weight_dtype computes in"
    kv_dtype = dtype if engine.kv_cache_dtype == "auto" else engine.kv_cache_dtype
    origins["kv_cache_dtype"] = "file" if engine.kv_cache_dtype != "auto" else "same as dtype"
    block_size = int(str(pick("block_size", engine.block_size, device.block_sizes[0], f"default on {device.kind}")))
    _check_block_size(block_size, device)
    default_tokens = max(DEFAULT_BATCHED_TOKENS.get(device.kind, 2048), engine.max_num_seqs)
    batched = int(
        str(pick("max_num_batched_tokens", engine.max_num_batched_tokens, default_tokens, f"default on {device.kind}"))
    )
    threads = int(str(pick("num_threads", engine.num_threads, device.num_cores, _why_cores(tp_size * pp_size))))
    asked_len = config.model.max_model_len
    max_model_len = int(str(pick("max_model_len", asked_len, facts.max_position_embeddings, "model")))
    check_context_length(config, facts)
    plan = plan_memory(
        facts=facts, device=device, dtype=dtype, kv_dtype=kv_dtype, block_size=block_size, tp_size=tp_size,
        pp_size=pp_size,
        max_num_seqs=engine.max_num_seqs, max_model_len=max_model_len,
        kv_cache_memory=None if engine.kv_cache_memory is None else parse_bytes(engine.kv_cache_memory),
        max_num_blocks=engine.max_num_blocks, utilization=engine.gpu_memory_utilization,
        weight_elements=weight_elements, weight_dtype=weight_dtype, reserve_bytes=reserve_bytes,
    )  # fmt: skip
    origins["num_blocks"] = plan.origin
    if plan.num_tokens < max_model_len:
        # One sequence of full length must fit, else it could never finish.
        if asked_len is not None:
            raise PlanDoesNotFit(
                f"max_model_len {max_model_len} needs more than the {plan.num_tokens} tokens "
                f"that {plan.num_blocks} KV blocks hold",
                remedy=f"Use --max-model-len {plan.num_tokens}, or more KV cache.",
                wanted=max_model_len,
                fitting=plan.num_tokens,
            )
        max_model_len = plan.num_tokens
        origins["max_model_len"] = (
            f"lowered from the model's {facts.max_position_embeddings} to what the KV cache holds"
        )
    return EngineConfig(
        model_path=config.model.path, model_name=config.model.name or Path(config.model.path).name,
        device=device.kind, dtype=dtype, kv_cache_dtype=kv_dtype, block_size=block_size, num_blocks=plan.num_blocks,
        max_model_len=max_model_len, max_num_seqs=engine.max_num_seqs, max_num_batched_tokens=batched,
        enable_prefix_caching=engine.enable_prefix_caching, enforce_eager=engine.enforce_eager,
        tensor_parallel_size=tp_size, pipeline_parallel_size=pp_size, num_threads=threads, seed=engine.seed,
        rope_switch_length=facts.rope_switch_length, plan=plan, origins=origins,
        max_loras=engine.max_loras if lora_enabled(config) else 0, max_lora_rank=engine.max_lora_rank,
        max_cpu_loras=engine.max_cpu_loras, weight_dtype=weight_dtype,
    )  # fmt: skip


def _check_weight_dtype(weight_dtype: str, dtype: str, device: DeviceFacts) -> None:
    if device.kind != "cpu":
        raise ConfigInvalid(
            f"$.engine.weight_dtype = {weight_dtype}: a device of kind {device.kind} has no kernels for weights in "
            "another dtype than it computes in; write auto"
        )
    if dtype not in {"auto", "float32"}:
        raise ConfigInvalid(
            f"$.engine.weight_dtype = {weight_dtype}: such weights are computed in float32, and $.model.dtype is "
            f"{dtype}; write dtype: float32, or weight_dtype: auto"
        )


def check_context_length(config: InstanceConfig, facts: ModelFacts) -> None:
    """Raise ConfigInvalid where more tokens are asked for than the model has positions."""
    asked, most = config.model.max_model_len, facts.max_position_embeddings
    if asked is not None and asked > most:
        raise ConfigInvalid(f"$.model.max_model_len = {asked}: the model has {most} positions; write {most} or less")


def check_parallel(config: InstanceConfig, facts: ModelFacts) -> None:
    """Raise ModelUnsupported, with the sizes that fit, unless the model can be spread over the configured ranks."""
    facts.check_tensor_parallel(config.parallel.tensor_parallel_size)
    facts.check_pipeline_parallel(config.parallel.pipeline_parallel_size)


def share_of_rank(device: DeviceFacts, world_size: int) -> DeviceFacts:
    """Return what one of `world_size` ranks may use: its device, or of a CPU, which they share, its part."""
    if device.kind != "cpu" or world_size == 1:
        return device
    return msgspec.structs.replace(
        device,
        total_bytes=device.total_bytes // world_size,
        free_bytes=device.free_bytes // world_size,
        num_cores=max(1, device.num_cores // world_size),
    )


def _why_cores(world_size: int) -> str:
    return "cores this process may use" + (f", shared by {world_size} ranks" if world_size > 1 else "")


def _check_block_size(block_size: int, device: DeviceFacts) -> None:
    if block_size not in device.block_sizes:
        raise ConfigInvalid(
            f"$.engine.block_size = {block_size}: the kernels of {device.name} take blocks of "
            f"{', '.join(map(str, sorted(device.block_sizes)))} tokens; write one of these, or leave the key out",
        )


def lora_enabled(config: InstanceConfig) -> bool:
    """Whether adapters may be used: as written, else where there are any or any may be loaded."""
    written = config.engine.enable_lora
    return bool(config.model.adapters or config.model.adapter_root) if written is None else written


def resolve_dtype(written: str, facts: ModelFacts, device: DeviceFacts) -> str:
    """Return the dtype: `auto` follows the checkpoint where the device is fast at it, else takes its first choice."""
    if written != "auto":
        return written
    if facts.dtype in device.fast_dtypes:
        return facts.dtype
    return device.fast_dtypes[0]


def _why_dtype(dtype: str, facts: ModelFacts, device: DeviceFacts) -> str:
    if dtype == facts.dtype:
        return "the checkpoint's"
    growth = DTYPE_BYTES[dtype] / DTYPE_BYTES.get(facts.dtype, 2)
    return f"{device.name} computes {facts.dtype} slowly ({growth:g}x the checkpoint's bytes)"
