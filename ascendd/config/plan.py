"""
The memory plan: weights + KV blocks + reserve against the memory of one device. Pure arithmetic.

    bytes per token = 2 (K and V) x layers x KV heads of this rank x head size x bytes per element,
                      or layers x (latent + rotary) x bytes per element where K and V are cached as one latent
    bytes per block = block size x bytes per token
    blocks          = (budget - weights - reserve) / bytes per block
"""

from __future__ import annotations

import math

import msgspec

from ascendd.config.model_facts import ModelFacts
from ascendd.config.quantity import format_bytes
from ascendd.config.weight_bytes import weight_bytes
from ascendd.errors import PlanDoesNotFit

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
# On a host without accelerators the KV cache shares memory with everything else, so the default stays modest.
CPU_DEFAULT_KV_BYTES = 4 * 2**30
# Activations, logits of a full batch, Python and torch themselves; measured at start on a device, assumed on a CPU.
CPU_RESERVE_BYTES = 768 * 2**20
DEFAULT_UTILIZATION = 0.9


class DeviceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What one device offers; bytes. On a CPU: the host's memory, or the cgroup's limit where that is lower."""

    kind: str
    name: str
    total_bytes: int
    free_bytes: int
    # dtypes whose matrix products run at full speed; the first is preferred where a checkpoint leaves the choice.
    fast_dtypes: tuple[str, ...]
    # Tokens in a KV block that the kernels take; the first is the default.
    block_sizes: tuple[int, ...] = (16, 32, 64, 128)
    num_cores: int = 1
    # Most tokens of a step in the profile run at start; None for whole steps.
    max_profile_tokens: int | None = None


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Where the memory of one device goes; bytes."""

    weights_bytes: int
    reserve_bytes: int
    budget_bytes: int
    bytes_per_token: int
    bytes_per_block: int
    block_size: int
    num_blocks: int
    origin: str
    # Whether somebody asked for this number of blocks; else it may shrink to what a start finds.
    is_asked: bool = False
    weights_origin: str = "config.json"
    # The sum that weights_bytes are, where not all weights are kept alike.
    weights_sum: str = ""
    reserve_origin: str = "assumed"

    @property
    def room_bytes(self) -> int:
        """Bytes that are left for KV blocks."""
        return self.budget_bytes - self.weights_bytes - self.reserve_bytes

    @property
    def num_fitting(self) -> int:
        """Blocks for which there is room."""
        return max(0, self.room_bytes // self.bytes_per_block)

    @property
    def kv_bytes(self) -> int:
        """Bytes of all KV blocks."""
        return self.num_blocks * self.bytes_per_block

    @property
    def num_tokens(self) -> int:
        """Tokens that all blocks hold."""
        return self.num_blocks * self.block_size


def kv_heads_per_rank(facts: ModelFacts, tp_size: int) -> int:
    """Return the KV heads that one rank stores: at least one, because heads are replicated beyond their number."""
    return max(1, facts.num_kv_heads // tp_size)


def kv_arithmetic(facts: ModelFacts, tp_size: int, bytes_per_element: int, pp_size: int = 1) -> str:
    """Return the product that makes up the bytes per token of one rank, in words."""
    num_layers = math.ceil(facts.num_layers / pp_size)
    if facts.latent is not None:
        latent = facts.latent
        sizes = f"({latent.kv_rank} latent + {latent.rope_dim} rotary)"
        return f"{num_layers} layers x {sizes} x {bytes_per_element} bytes"
    heads = kv_heads_per_rank(facts, tp_size)
    return f"2 (K and V) x {num_layers} layers x {heads} KV heads x {facts.head_dim} x {bytes_per_element} bytes"


def weights_bytes_per_rank(facts: ModelFacts, dtype: str, tp_size: int, pp_size: int = 1) -> int:
    """
    Return the bytes of one rank's weights; that norms are replicated is below 0.1 %.

    Of several stages the longest with an embedding or head counts, all layers taken as alike; the engine counts them.
    """
    whole, rest = facts.num_replicated_parameters, facts.num_parameters - facts.num_replicated_parameters
    if pp_size > 1:
        table = facts.vocab_size * facts.hidden_size
        share = math.ceil(facts.num_layers / pp_size) / facts.num_layers
        layers = rest - table * (1 if facts.tie_word_embeddings else 2)
        whole, rest = math.ceil(whole * share), math.ceil(layers * share) + table
    return (whole + math.ceil(rest / tp_size)) * DTYPE_BYTES[dtype]


def plan_memory(
    *,
    facts: ModelFacts,
    device: DeviceFacts,
    dtype: str,
    kv_dtype: str,
    block_size: int,
    tp_size: int,
    pp_size: int = 1,
    max_num_seqs: int,
    max_model_len: int,
    kv_cache_memory: int | None = None,
    max_num_blocks: int | None = None,
    utilization: float | None = None,
    weight_elements: int | None = None,
    weight_dtype: str | None = None,
    reserve_bytes: int | None = None,
) -> MemoryPlan:
    """
    Size the KV cache of one device.

    `weight_elements` of one rank are those counted in its files, where there are any. `weight_dtype` is what
    projections are kept as where that is not `dtype`. A `reserve_bytes` that is given replaces both the assumed reserve
    and the tenth of the device that is otherwise left alone.

    Raises PlanDoesNotFit, naming the number that fits, when what was asked for is more than what is there.
    """
    if weight_elements is None:
        elements = weights_bytes_per_rank(facts, dtype, tp_size, pp_size) // DTYPE_BYTES[dtype]
    else:
        elements = weight_elements
    kept = weight_bytes(
        facts, elements=elements, dtype=dtype, weight_dtype=weight_dtype, tp_size=tp_size, pp_size=pp_size,
        is_cpu=device.kind == "cpu",
    )  # fmt: skip
    weights = kept.num_bytes
    per_token = facts.kv_bytes_per_token(DTYPE_BYTES[kv_dtype], tp_size, pp_size)
    per_block = per_token * block_size
    reserve = CPU_RESERVE_BYTES if reserve_bytes is None else reserve_bytes
    share = utilization or (DEFAULT_UTILIZATION if reserve_bytes is None else 1.0)
    budget = min(int(device.total_bytes * share), device.free_bytes)
    room = budget - weights - reserve
    fitting = max(0, room // per_block)

    if max_num_blocks is not None:
        wanted, origin = max_num_blocks, "engine.max_num_blocks"
    elif kv_cache_memory is not None:
        wanted, origin = kv_cache_memory // per_block, "engine.kv_cache_memory"
    elif utilization is not None:
        wanted, origin = fitting, "engine.gpu_memory_utilization"
    else:
        # More than every sequence at full length could ever use would only be zeros.
        useful = max_num_seqs * math.ceil(max_model_len / block_size)
        wanted, origin = (
            min(fitting, useful),
            "default: all that fits" if share == 1 else f"default: {share:g} of the device",
        )
        if device.kind == "cpu" and wanted * per_block > CPU_DEFAULT_KV_BYTES:
            wanted, origin = (
                CPU_DEFAULT_KV_BYTES // per_block,
                f"default on a CPU: {format_bytes(CPU_DEFAULT_KV_BYTES)}",
            )

    plan = MemoryPlan(
        weights_bytes=weights, reserve_bytes=reserve, budget_bytes=budget, bytes_per_token=per_token,
        bytes_per_block=per_block, block_size=block_size, num_blocks=wanted, origin=origin,
        is_asked=max_num_blocks is not None or kv_cache_memory is not None,
        weights_origin="config.json" if weight_elements is None else "its files",
        reserve_origin="assumed" if reserve_bytes is None else "given", weights_sum=kept.sum_of,
    )  # fmt: skip
    if wanted > fitting or wanted < 1:
        raise _does_not_fit(plan)
    return plan


def fit_measured(plan: MemoryPlan, *, free_bytes: int, activation_bytes: int, max_model_len: int) -> MemoryPlan:
    """
    Check `plan` against what a start found: `free_bytes` with the weights loaded, `activation_bytes` at the peak.

    The reserve becomes the measured one. A number of blocks that nobody asked for shrinks to what fits, as long as one
    sequence of `max_model_len` tokens does; any other raises PlanDoesNotFit. A start never takes more than was planned.
    """
    measured = msgspec.structs.replace(
        plan,
        budget_bytes=free_bytes + plan.weights_bytes,
        reserve_bytes=activation_bytes,
        reserve_origin="measured at start",
    )
    if plan.num_blocks <= measured.num_fitting:
        return measured
    if plan.is_asked or measured.num_fitting * plan.block_size < max_model_len:
        raise _does_not_fit(measured)
    origin = "what was free with the weights loaded"
    return msgspec.structs.replace(measured, num_blocks=measured.num_fitting, origin=origin)


def _does_not_fit(plan: MemoryPlan) -> PlanDoesNotFit:
    fitting = plan.num_fitting
    if not fitting:
        remedy = "Free memory, or choose a smaller model or dtype."
    elif plan.is_asked:
        remedy = f"Use at most --max-num-blocks {fitting}."
    else:
        remedy = f"Free memory, or use --max-model-len {fitting * plan.block_size}."
    return PlanDoesNotFit(
        f"{plan.num_blocks} KV blocks of {format_bytes(plan.bytes_per_block)} ({plan.origin}) do not fit: "
        f"{format_bytes(plan.budget_bytes)} usable - {format_bytes(plan.weights_bytes)} weights - "
        f"{format_bytes(plan.reserve_bytes)} reserve ({plan.reserve_origin}) leave room for {fitting} blocks",
        remedy=remedy,
        wanted=plan.num_blocks,
        fitting=fitting,
    )
