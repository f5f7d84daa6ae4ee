"""
Fused kernels prove themselves: each runs beside the reference, on the same device, with the model's own head sizes.

The reference computes in float32 from the same rounded inputs, so what is left is the rounding of one result. Two
measures: the largest deviation of a number beside the numbers' usual size, and the gain, which finds a result that is
wrong as a whole by far less than one rounding. A wrong assumption about a chip thus costs speed, never a wrong answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from ascendd.device.base import (
    AttentionContext,
    DecodeGroup,
    KernelShapes,
    KernelVerdict,
    LatentUp,
    PrefillChunk,
    SequenceTable,
)
from ascendd.device.kernels.npu import NpuKernels
from ascendd.device.kernels.npu_experts import StackedExperts
from ascendd.device.kernels.npu_latents import SplitLatentCache
from ascendd.device.kernels.plain_attention import plain_attention
from ascendd.device.kernels.reference import ReferenceKernels
from ascendd.device.npu_faults import classify
from ascendd.device.soc import FusedOp
from ascendd.errors import DeviceEccError, DeviceLost

# Largest deviation of one number as a share of its size, or of a quarter of the usual size where that is more.
_TOLERANCE = {"float32": 4e-3, "float16": 6e-3, "bfloat16": 9e-3}
# Deviation of the sum of products with the expected result: rounding averages out, a wrong factor does not.
_GAIN_TOLERANCE = 2e-3
_MAX_EXPERTS, _MAX_WIDTH = 4, 512
_NUM_TOKENS = 5

Results = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class _Case:
    """Two computations of the same thing."""

    operator: FusedOp
    expected: Callable[[], Results]
    actual: Callable[[], Results]


def prove(
    kernels: NpuKernels, device: str, shapes: KernelShapes, synchronize: Callable[[], None]
) -> list[KernelVerdict]:
    """
    Run every fused kernel in use and return a verdict for each; make `kernels` give up those that did not pass.

    Raises the vendor's error where it says that the device itself is gone: no other kernel would run there either.
    """
    verdicts = []
    for case in _cases(kernels, device, shapes):
        if case.operator not in kernels.fused:
            continue
        try:
            actual = [part.float().cpu() for part in case.actual()]
            synchronize()
            expected = [part.float().cpu() for part in case.expected()]
            passed, detail = compare(actual, expected, shapes.dtype)
        except Exception as error:  # whatever a vendor's operator raises, it is not the operator to use
            if isinstance(classify(error), (DeviceLost, DeviceEccError)):
                raise
            passed, detail = False, f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300]}"
        verdicts.append(KernelVerdict(case.operator.value, passed, detail))
        if not passed:
            kernels.give_up(case.operator)
    return verdicts


def compare(actual: list[torch.Tensor], expected: list[torch.Tensor], dtype: str) -> tuple[bool, str]:
    """Return whether results on the host, in float32, are those of `dtype` rounded, and what was measured."""
    worst, worst_gain = 0.0, 0.0
    for got, wanted in zip(actual, expected, strict=True):
        if got.shape != wanted.shape:
            return False, f"shape {tuple(got.shape)} in place of {tuple(wanted.shape)}"
        if not bool(got.isfinite().all()):
            return False, f"{int((~got.isfinite()).sum())} of {got.numel()} numbers are not finite"
        usual = wanted.square().mean().sqrt()
        worst = max(worst, float(((got - wanted).abs() / wanted.abs().clamp_min(usual / 4)).max()))
        worst_gain = max(worst_gain, abs(float((got * wanted).sum() / wanted.square().sum()) - 1.0))
    detail = f"largest deviation {worst:.2%} (at most {_TOLERANCE[dtype]:.2%}), gain off by {worst_gain:.3%}"
    return worst <= _TOLERANCE[dtype] and worst_gain <= _GAIN_TOLERANCE, detail


def _cases(kernels: NpuKernels, device: str, shapes: KernelShapes) -> Iterator[_Case]:
    make = _Inputs(device, getattr(torch, shapes.dtype))
    reference = _PlainReference()
    yield from _elementwise(kernels, reference, make, shapes)
    if shapes.latent_rank:
        yield _latents(kernels, reference, make, shapes)
    else:
        yield from _cache(kernels, reference, make, shapes)
    if shapes.num_experts:
        yield _experts(kernels, reference, make, shapes)


class _PlainReference(ReferenceKernels):
    """kernels/reference.py itself, with attention written out as kernels.block_major has it, and for its reason."""

    attend = staticmethod(plain_attention)


class _Inputs:
    """Random numbers whose size lies between 0.5 and 1.5, so that none of them drowns in rounding."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        self._generator = torch.Generator().manual_seed(20)

    def __call__(self, *shape: int, signed: bool = True, scale: float = 1.0) -> torch.Tensor:
        numbers = torch.rand(shape, generator=self._generator) + 0.5
        if signed:
            numbers *= torch.randint(0, 2, shape, generator=self._generator) * 2 - 1
        return (numbers * scale).to(self._device, self._dtype)

    def index(self, values: list[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """Return integers on the device."""
        return torch.tensor(values, dtype=dtype).to(self._device)


def _elementwise(
    kernels: NpuKernels, reference: ReferenceKernels, make: _Inputs, shapes: KernelShapes
) -> Iterator[_Case]:
    x, residual, weight = (make(_NUM_TOKENS, shapes.hidden_size) for _ in range(3))
    weight = weight[0].clone()
    yield _Case(
        FusedOp.RMS_NORM,
        lambda: (reference.rms_norm(x.float(), weight.float(), shapes.eps),),
        lambda: (kernels.rms_norm(x, weight, shapes.eps),),
    )
    yield _Case(
        FusedOp.ADD_RMS_NORM,
        lambda: reference.add_rms_norm(x.float(), residual.float(), weight.float(), shapes.eps),
        lambda: kernels.add_rms_norm(x.clone(), residual.clone(), weight, shapes.eps),
    )
    heads = make(_NUM_TOKENS, shapes.num_heads, shapes.rotary_dim)
    half = torch.arange(_NUM_TOKENS)[:, None] * torch.logspace(0, -4, shapes.rotary_dim // 2)[None]
    angles = torch.cat((half, half), dim=-1)[:, None]
    cos, sin = (table.to(heads.device, heads.dtype) for table in (angles.cos(), angles.sin()))
    yield _Case(
        FusedOp.ROPE,
        lambda: (reference.rope(heads.float(), cos.float(), sin.float()),),
        lambda: (kernels.rope(heads.clone(), cos, sin),),
    )
    yield _Case(
        FusedOp.ROPE_INTERLEAVED,
        lambda: (reference.rope_interleaved(heads.float(), cos.float(), sin.float()),),
        lambda: (kernels.rope_interleaved(heads.clone(), cos, sin),),
    )
    gate_up = make(_NUM_TOKENS, 2 * shapes.intermediate_size)
    yield _Case(
        FusedOp.SILU_AND_MUL,
        lambda: (reference.silu_and_mul(gate_up.float()),),
        lambda: (kernels.silu_and_mul(gate_up.clone()),),
    )


def _contexts(make: _Inputs, block_size: int, *, decodes_only: bool) -> tuple[AttentionContext, int]:
    """
    Two lone new tokens with half a block and more than a block behind them, then, unless `decodes_only`, a prompt.

    Returns the context and the blocks that its cache needs. Slots hold tokens 0 .. before the new ones, too.
    """
    lengths = [block_size // 2 + 1, block_size + 3]
    tables = [[3, 0], [1, 4]]
    slots = [tables[row][(n - 1) // block_size] * block_size + (n - 1) % block_size for row, n in enumerate(lengths)]
    masks = torch.arange(2 * block_size)[None] < torch.tensor(lengths)[:, None]
    mask = make.index(masks.flatten().int().tolist()).bool().view(masks.shape)
    context = AttentionContext(
        slot_mapping=make.index(slots),
        decode_groups=[DecodeGroup(make.index([0, 1]), make.index([*tables[0], *tables[1]]).view(2, 2), mask)],
    )
    ends, lengths = [1, 2], lengths.copy()
    if not decodes_only:
        num_new = _NUM_TOKENS - 2
        context.slot_mapping = make.index([*slots, *(2 * block_size + offset for offset in range(num_new))])
        context.prefill_chunks = [PrefillChunk(2, _NUM_TOKENS, 0, make.index([2]))]
        ends, lengths, tables = [*ends, _NUM_TOKENS], [*lengths, num_new], [*tables, [2, 0]]
    block_table = make.index([block for row in tables for block in row], torch.int32).view(-1, 2)
    context.table = SequenceTable(ends, lengths, block_table, make.index([0, 1]) if decodes_only else None)
    return context, 5


def _cache(kernels: NpuKernels, reference: ReferenceKernels, make: _Inputs, shapes: KernelShapes) -> Iterator[_Case]:
    context, num_blocks = _contexts(make, shapes.block_size, decodes_only=False)
    query = make(_NUM_TOKENS, shapes.num_heads, shapes.head_dim)
    kv_shape = (shapes.num_kv_heads, shapes.head_dim)
    old_slots = torch.arange(num_blocks * shapes.block_size).to(query.device)
    old_key = make(num_blocks * shapes.block_size, *kv_shape)
    old_value = make(num_blocks * shapes.block_size, *kv_shape, signed=False)
    key, value = make(_NUM_TOKENS, *kv_shape), make(_NUM_TOKENS, *kv_shape, signed=False)
    scale = shapes.head_dim**-0.5

    def block_major() -> torch.Tensor:
        """Fill a cache as the kernels lay it out, with what is there before the step, by the reference."""
        cache = query.new_zeros((2, num_blocks, shapes.block_size, *kv_shape))
        super(NpuKernels, kernels).store_kv(cache, old_key, old_value, old_slots)
        return cache

    def stored() -> Results:
        cache = block_major()
        kernels.store_kv(cache, key, value, context.slot_mapping)
        return (cache.flatten(1, 2),)

    def expected_stored() -> Results:
        both = torch.stack((old_key, old_value)).float()
        both[0, context.slot_mapping], both[1, context.slot_mapping] = key.float(), value.float()
        return (both,)

    def attended() -> Results:
        cache = block_major()
        super(NpuKernels, kernels).store_kv(cache, key, value, context.slot_mapping)
        return (kernels.paged_attention(query, key, value, cache, context, scale),)

    def expected_attended() -> Results:
        shape = (2, shapes.num_kv_heads, num_blocks, shapes.block_size * shapes.head_dim)
        cache = torch.zeros(shape, dtype=torch.float32, device=query.device)
        reference.store_kv(cache, old_key.float(), old_value.float(), old_slots)
        reference.store_kv(cache, key.float(), value.float(), context.slot_mapping)
        return (reference.paged_attention(query.float(), key.float(), value.float(), cache, context, scale),)

    yield _Case(FusedOp.STORE_KV, expected_stored, stored)
    yield _Case(FusedOp.PAGED_ATTENTION, expected_attended, attended)


def _latents(kernels: NpuKernels, reference: ReferenceKernels, make: _Inputs, shapes: KernelShapes) -> _Case:
    context, num_blocks = _contexts(make, shapes.block_size, decodes_only=True)
    width, num_slots = shapes.latent_rank + shapes.rotary_dim, num_blocks * shapes.block_size
    query = make(2, shapes.num_heads, shapes.latent_nope_dim + shapes.rotary_dim)
    old, latent = make(num_slots, width, signed=False), make(2, width, signed=False)
    old_slots = torch.arange(num_slots).to(query.device)
    up_shape = (shapes.num_heads, shapes.latent_nope_dim + shapes.latent_value_dim, shapes.latent_rank)
    up = LatentUp(make(*up_shape, scale=shapes.latent_rank**-0.5), shapes.latent_nope_dim)
    up.value.abs_()  # sums that do not cancel keep rounding small
    scale = (shapes.latent_nope_dim + shapes.rotary_dim) ** -0.5

    def run(dtype: torch.dtype, by: ReferenceKernels) -> Results:
        cache = torch.zeros((num_blocks, shapes.block_size, width), dtype=dtype, device=query.device)
        by.store_latent(cache, old.to(dtype), old_slots)
        by.store_latent(cache, latent.to(dtype), context.slot_mapping)
        wide = LatentUp(up.weight.to(dtype), up.nope_dim)
        attended = by.latent_attention(query.to(dtype), latent.to(dtype), cache, context, scale, wide)
        # What was stored is a result, too: rotated parts that are a little off hardly show in what is attended.
        return attended, stored(cache, by)

    def stored(cache: torch.Tensor, by: ReferenceKernels) -> torch.Tensor:
        """Return the cached latents in the order of slots."""
        if by is kernels:
            cache = SplitLatentCache.of(cache, shapes.latent_rank).gather(torch.arange(num_blocks).to(cache.device))
        return cache.view(num_slots, width)

    return _Case(FusedOp.LATENT_ATTENTION, lambda: run(torch.float32, reference), lambda: run(query.dtype, kernels))


def _experts(kernels: NpuKernels, reference: ReferenceKernels, make: _Inputs, shapes: KernelShapes) -> _Case:
    num, chosen = min(shapes.num_experts, _MAX_EXPERTS), min(shapes.num_experts_per_token, _MAX_EXPERTS - 1)
    hidden, size = min(shapes.hidden_size, _MAX_WIDTH), min(shapes.expert_size, _MAX_WIDTH)
    # All positive, so that sums do not cancel and rounding stays small; each expert is of another size, so that a row
    # that met the wrong one is far off.
    x = make(_NUM_TOKENS, hidden, signed=False)
    pairs = [
        (
            make(2 * size, hidden, signed=False, scale=(1 + index / 2) / hidden),
            make(hidden, size, signed=False, scale=1 / size),
        )
        for index in range(num)
    ]
    ids = make.index([(row + place) % num for row in range(_NUM_TOKENS) for place in range(chosen)])
    ids, weights = ids.view(_NUM_TOKENS, chosen), make(_NUM_TOKENS, chosen, signed=False).float()

    def run(dtype: torch.dtype, by: ReferenceKernels) -> Results:
        stacked = StackedExperts(num, [(gate_up.to(dtype), down.to(dtype)) for gate_up, down in pairs])
        return (by.experts(x.to(dtype), ids, weights, stacked),)

    return _Case(FusedOp.EXPERTS, lambda: run(torch.float32, reference), lambda: run(x.dtype, kernels))
