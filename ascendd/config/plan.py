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
    num_cores: int = 1


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


def kv_arithmetic(facts: ModelFacts, tp_size: int, bytes_per_element: int) -> str:
    """Return the product that makes up the bytes per token of one rank, in words."""
    if facts.latent is not None:
        latent = facts.latent
        sizes = f"({latent.kv_rank} latent + {latent.rope_dim} rotary)"
        return f"{facts.num_layers} layers x {sizes} x {bytes_per_element} bytes"
    heads = kv_heads_per_rank(facts, tp_size)
    return f"2 (K and V) x {facts.num_layers} layers x {heads} KV heads x {facts.head_dim} x {bytes_per_element} bytes"


def weights_bytes_per_rank(facts: ModelFacts, dtype: str, tp_size: int) -> int:
    """Return the bytes of one rank's weights; that norms are replicated is below 0.1 %."""
    whole = facts.num_replicated_parameters
    return (whole + math.ceil((facts.num_parameters - whole) / tp_size)) * DTYPE_BYTES[dtype]


def plan_memory(
    *,
    facts: ModelFacts,
    device: DeviceFacts,
    dtype: str,
    kv_dtype: str,
    block_size: int,
    tp_size: int,
    max_num_seqs: int,
    max_model_len: int,
    kv_cache_memory: int | None = None,
    max_num_blocks: int | None = None,
    utilization: float | None = None,
) -> MemoryPlan:
    """
    Size the KV cache of one device.

    Raises PlanDoesNotFit, naming the number that fits, when what was asked for is more than what is there.
    """
    weights = weights_bytes_per_rank(facts, dtype, tp_size)
    per_token = facts.kv_bytes_per_token(DTYPE_BYTES[kv_dtype], tp_size)
    per_block = per_token * block_size
    reserve = CPU_RESERVE_BYTES
    budget = min(int(device.total_bytes * (utilization or DEFAULT_UTILIZATION)), device.free_bytes)
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
        wanted, origin = min(fitting, useful), f"default: {DEFAULT_UTILIZATION:g} of the device"
        if device.kind == "cpu" and wanted * per_block > CPU_DEFAULT_KV_BYTES:
            wanted, origin = (
                CPU_DEFAULT_KV_BYTES // per_block,
                f"default on a CPU: {format_bytes(CPU_DEFAULT_KV_BYTES)}",
            )

    if wanted > fitting or wanted < 1:
        raise PlanDoesNotFit(
            f"{wanted} KV blocks of {format_bytes(per_block)} ({origin}) do not fit: {format_bytes(budget)} usable - "
            f"{format_bytes(weights)} weights - {format_bytes(reserve)} reserve leave room for {fitting} blocks",
            remedy=f"Use at most --max-num-blocks {fitting}."
            if fitting
            else "Free memory, or choose a smaller model or dtype.",
            wanted=wanted,
            fitting=fitting,
        )
    return MemoryPlan(
        weights_bytes=weights, reserve_bytes=reserve, budget_bytes=budget, bytes_per_token=per_token,
        bytes_per_block=per_block, block_size=block_size, num_blocks=wanted, origin=origin,
    )  # fmt: skip
