"""The native kernels beside the reference, at both widths of vectors that this core may have."""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional

from ascendd.device.base import AttentionContext, KernelShapes, KVCacheSpec, PrefillChunk, SequenceTable
from ascendd.device.cpu import CpuDevice
from ascendd.device.kernels import native_library as library_module
from ascendd.device.kernels.native import NativeKernels, suits
from ascendd.device.kernels.native_library import ABI, native_library
from ascendd.device.kernels.native_linear import NativeLinear
from ascendd.device.kernels.reference import ReferenceKernels
from ascendd.errors import ConfigInvalid

ROOT = Path(__file__).parents[2]
ABI_FINGERPRINTS = {3: "301c4685cde5ba70"}
# Largest difference, relative to the largest output.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.int8: 3e-2}
SHAPES = KernelShapes("float32", 64, 128, 4, 2, 16, 16, 1e-5, 16)
common = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """Compile where the installation did not, or for another ABI; a compiler is all that it takes."""
    if native_library() is None:
        if shutil.which("cc") is None and shutil.which("gcc") is None:
            pytest.skip("no C compiler")
        build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--force"]
        subprocess.run(build, cwd=ROOT, check=True)
        native_library.cache_clear()
    assert native_library() is not None


@pytest.fixture(params=[1, 2, 3])
def level(request: pytest.FixtureRequest) -> Iterator[int]:
    """Narrow and wide vectors and whole numbers; what the core lacks is replaced by the next below."""
    library = native_library()
    assert library is not None
    yield library.ascendd_choose(request.param)
    library.ascendd_choose(3)


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@common
@given(
    num_rows=st.integers(1, 40), features=st.integers(1, 200), depth=st.integers(1, 150), seed=st.integers(0, 9),
    dtype=st.sampled_from(list(TOLERANCE)), has_bias=st.booleans(), threads=st.integers(1, 2),
)  # fmt: skip
def test_a_packed_linear_is_the_linear(level, num_rows, features, depth, seed, dtype, has_bias, threads) -> None:
    """Any shape, part full panels and rows of a wider tensor included, within the format's rounding."""
    torch.set_num_threads(threads)
    weight, bias = rand(features, depth, seed=seed), rand(features, seed=seed + 1) if has_bias else None
    x = rand(num_rows, depth + 3, seed=seed + 2)[:, :depth]
    expected = functional.linear(x, weight, bias)
    found = NativeLinear(weight, bias, dtype)(x)

    scale = expected.abs().max().item() + depth**0.5
    assert (found - expected).abs().max().item() <= TOLERANCE[dtype] * scale


def test_sums_over_more_features_than_one_part_holds(level) -> None:
    """5000 input features are three parts, whose sums meet in the output, with scale and bias added once."""
    weight, bias, x = rand(70, 5000), rand(70, seed=1), rand(3, 5000, seed=2)

    for dtype, tolerance in TOLERANCE.items():
        expected = functional.linear(x, weight, bias)
        assert (NativeLinear(weight, bias, dtype)(x) - expected).abs().max() <= tolerance * expected.abs().max()


def test_int8_weights_are_within_half_a_step_of_their_row(level) -> None:
    """The identity times the packed weight gives the stored weights back."""
    weight = rand(33, 20) * torch.logspace(-3, 3, 33)[:, None]
    stored = NativeLinear(weight, None, torch.int8)(torch.eye(20)).t()

    assert ((stored - weight).abs() <= weight.abs().amax(dim=1, keepdim=True) / 127 * 0.501).all()


def test_a_row_of_int8_does_not_depend_on_its_neighbours(level) -> None:
    """Bit for bit the same alone, in a batch of any size and beside an outlier; what is no number stays that."""
    linear, x = NativeLinear(rand(90, 150), rand(90, seed=1), torch.int8), rand(29, 150, seed=2)
    x[3], x[5, 7], x[6] = 0, 1e6, 1e-38
    whole, bias = linear(x), linear(torch.zeros(1, 150))

    if level >= library_module.WHOLE_LEVEL:
        assert all(torch.equal(linear(x[:count])[-1], whole[count - 1]) for count in range(1, 30))
    assert torch.equal(whole[3:4], bias)
    assert torch.allclose(whole[6:7], bias)
    for bad in (float("nan"), float("inf")):
        x[9, 149] = bad
        assert not linear(x)[9].isfinite().any()
        assert torch.equal(linear(x)[10:], whole[10:])


@common
@given(
    spans=st.lists(st.tuples(st.integers(0, 90), st.integers(1, 70) | st.just(1)), min_size=1, max_size=5),
    kv_heads=st.integers(1, 3), group=st.integers(1, 20), head_dim=st.sampled_from([16, 48, 64, 80, 128]),
    dtype=st.sampled_from(["float32", "float16", "bfloat16"]), threads=st.integers(1, 2),
    block_size=st.sampled_from([16, 32]),
)  # fmt: skip
def test_attention_is_the_reference(level, spans, kv_heads, group, head_dim, dtype, threads, block_size) -> None:
    """Prompts, their later chunks and lone tokens, over blocks in any order, with a query that is part of a tensor."""
    torch.set_num_threads(threads)
    heads, lengths = kv_heads * group, [start + new for start, new in spans]
    ends = [sum(new for _, new in spans[: index + 1]) for index in range(len(spans))]
    width = max(-(-length // block_size) for length in lengths)
    table = torch.randperm(len(spans) * width, generator=torch.Generator().manual_seed(1)).view(-1, width) + 1
    spec = KVCacheSpec(1, kv_heads, head_dim, block_size, table.numel() + 1, dtype)
    caches = [CpuDevice().allocate_kv(spec)[0] for _ in range(2)]
    slots = torch.cat(
        [
            torch.tensor([int(table[row, at // block_size]) * block_size + at % block_size for at in range(length)])
            for row, length in enumerate(lengths)
        ]
    )
    stored = rand(len(slots), 3 * kv_heads, head_dim, seed=2).to(getattr(torch, dtype)).float()
    reference, native = ReferenceKernels(), NativeKernels()
    for kernels, cache in zip((reference, native), caches, strict=True):
        kernels.store_kv(cache, stored[:, :kv_heads], stored[:, kv_heads : 2 * kv_heads], slots)
    query = rand(ends[-1], heads + 2, head_dim, seed=3)[:, 1 : heads + 1]
    owned = torch.cat(
        [torch.arange(sum(lengths[:i]) + start, sum(lengths[: i + 1])) for i, (start, _) in enumerate(spans)]
    )
    key, value = stored[owned, :kv_heads], stored[owned, kv_heads : 2 * kv_heads]
    chunks = [
        PrefillChunk(end - new, end, start, table[row, : -(-(start + new) // block_size)])
        for row, ((start, new), end) in enumerate(zip(spans, ends, strict=True))
    ]
    expected = reference.paged_attention(
        query, key, value, caches[0], AttentionContext(slots, prefill_chunks=chunks), 0.3
    )
    context = AttentionContext(slots, table=SequenceTable(ends, lengths, table.to(torch.int32)))
    found = native.paged_attention(query, key, value, caches[1], context, 0.3)

    assert torch.equal(*(cache.view(torch.uint8) for cache in caches))
    assert torch.allclose(found, expected, atol=2e-5)


@common
@given(num_rows=st.integers(1, 9), dim=st.integers(1, 70), seed=st.integers(0, 9))
def test_norms_gate_and_rotation_are_the_reference(level, num_rows, dim, seed) -> None:
    """On any width, also of a size that fills no vector."""
    reference, native = ReferenceKernels(), NativeKernels()
    x, residual, weight = (
        rand(num_rows, dim, seed=seed) * 9,
        rand(num_rows, dim, seed=seed + 1),
        rand(dim, seed=seed + 2),
    )
    both = rand(num_rows, 2 * dim, seed=seed + 3) * 60
    heads, angles = rand(num_rows, 5, 2 * dim, seed=seed + 4), rand(num_rows, 1, dim, seed=seed + 5)
    cos, sin = (torch.cat((table, table), -1) for table in (angles.cos(), angles.sin()))
    sums = [kernels.add_rms_norm(x.clone(), residual.clone(), weight, 1e-5) for kernels in (reference, native)]
    norms = [kernels.rms_norm(x, weight, 1e-5) for kernels in (reference, native)]
    gates = [kernels.silu_and_mul(both.clone()) for kernels in (reference, native)]
    turned = [kernels.rope(heads.clone()[:, 1:4], cos, sin) for kernels in (reference, native)]

    assert torch.equal(sums[0][1], sums[1][1])
    for one, other in ((sums[0][0], sums[1][0]), norms, gates, turned):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-5)


def test_who_is_served_by_native_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A float32 model with K and V of heads that fill vectors; none where nothing was compiled."""
    other = KernelShapes("bfloat16", 64, 128, 4, 2, 16, 16, 1e-5, 16)
    odd = KernelShapes("float32", 64, 128, 4, 2, 24, 24, 1e-5, 16)

    assert [suits(shapes) for shapes in (SHAPES, other, odd)] == [True, False, False]
    monkeypatch.setattr(library_module, "LIBRARY", Path("/nonexistent"))
    native_library.cache_clear()
    try:
        assert not suits(SHAPES)
        device = CpuDevice()
        device.prove_kernels(SHAPES)
        assert not isinstance(device.kernels, NativeKernels)
        assert device.pack_linear(rand(8, 8), None)(torch.eye(8)).shape == (8, 8)
    finally:
        native_library.cache_clear()


def test_the_structures_agree_with_the_header() -> None:
    """Sizes of ctypes beside those that the compiler finds, which padding or a forgotten field would change."""
    assert ctypes.sizeof(library_module.PackedCall) == 6 * 8
    assert ctypes.sizeof(library_module.AttentionCall) == 15 * 8
    assert ctypes.sizeof(library_module.StoreCall) == 11 * 8


def test_the_abi_number_stands_for_what_is_called() -> None:
    """A changed structure or exported function without a new ABI number would let an old library be called."""
    calls, native = ((ROOT / "ascendd/device/kernels/csrc" / name).read_text() for name in ("calls.h", "native.c"))
    parts = re.findall(r"typedef struct \{.*?\} \w+;", calls, re.DOTALL)[:-1]  # the last is the library's own
    parts += re.findall(r"^EXPORT [^{]*", native, re.MULTILINE)
    plain = "".join(re.sub(r"/\*.*?\*/|\s", "", part, flags=re.DOTALL) for part in parts)

    library = native_library()
    assert library is not None
    assert library.ascendd_abi() == ABI
    assert f"#define ABI {ABI}\n" in calls
    assert hashlib.sha256(plain.encode()).hexdigest()[:16] == ABI_FINGERPRINTS[ABI], (
        "raise ABI in calls.h and native_library.py, and give the new number this fingerprint"
    )


def compiled(source: str, to: Path) -> Path:
    """A library of one C file."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None
    subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(to)], input=source.encode(), check=True)
    return to


@pytest.mark.parametrize(("source", "found"), [("int ascendd_abi(void) { return 99; }", "99"), ("int nothing;", "1")])
def test_a_library_of_another_abi_is_left_alone(
    source: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stale library is told with its path, both numbers and what to do, and torch computes instead."""
    stale, lines = compiled(source, tmp_path / "libcpukernels.so"), []
    monkeypatch.setattr(library_module, "LIBRARY", stale)
    monkeypatch.setattr(
        library_module.log, "get_logger",
        lambda _: SimpleNamespace(warning=lambda event, **facts: lines.append((event, facts))),
    )  # fmt: skip
    native_library.cache_clear()
    try:
        assert native_library() is None
        assert not suits(SHAPES)
        assert torch.equal(CpuDevice().pack_linear(torch.eye(8), None)(torch.eye(8)), torch.eye(8))
        with pytest.raises(ConfigInvalid, match="again, if its kernels are of another version"):
            CpuDevice().use_weight_dtype("int8")
    finally:
        native_library.cache_clear()

    ((event, facts),) = lines
    assert event == "device.native_kernels_off"
    assert facts["reason"] == f"{stale} was compiled for ABI {found} of the kernels, and this ascendd calls ABI {ABI}"
    assert "Install ascendd again" in facts["remedy"]


@pytest.mark.parametrize("weight_dtype", ["auto", "float16", "int8"])
def test_an_engine_with_native_kernels_answers(
    make_core: Callable, generate: Callable, tiny_model: Callable, weight_dtype: str
) -> None:
    """Prompts of several lengths get all their tokens, and float32 the same as from the reference."""
    folder, _ = tiny_model("llama")
    prompts = [[5, 6, 7], list(range(3, 40)), [9] * 20]
    found = generate(make_core(folder, weight_dtype=weight_dtype), prompts)

    assert [len(tokens) for tokens in found] == [8, 8, 8]
    if weight_dtype == "auto":
        assert found == generate(make_core(folder, pack=False), prompts)
