"""Fast kernels beside the reference, and the reference beside the textbook."""

from __future__ import annotations

import gc

import pytest
import torch
from torch.nn import functional

from ascendd.device.base import KVCacheSpec
from ascendd.device.cpu import _FORMS, CpuDevice
from ascendd.device.kernels.cpu import CpuKernels
from ascendd.device.kernels.reference import ReferenceKernels, gather_blocks


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_rms_norm_is_x_over_its_root_mean_square() -> None:
    """Beside the formula written out."""
    x, weight = rand(5, 32), rand(32, seed=1)
    expected = x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight

    assert torch.allclose(ReferenceKernels().rms_norm(x, weight, 1e-5), expected, atol=1e-6)


def test_add_rms_norm_returns_the_sum_as_the_new_residual() -> None:
    """norm(x + residual) and x + residual."""
    x, residual, weight = rand(3, 16), rand(3, 16, seed=1), rand(16, seed=2)
    y, new_residual = ReferenceKernels().add_rms_norm(x.clone(), residual.clone(), weight, 1e-5)

    assert torch.equal(new_residual, x + residual)
    assert torch.allclose(y, ReferenceKernels().rms_norm(x + residual, weight, 1e-5))


def test_rope_in_place_equals_the_reference() -> None:
    """On a slice of a wider tensor, as the model calls it, without touching the rest."""
    qkv, angles = rand(6, 8, 24), rand(6, 1, 12, seed=1)
    cos, sin = (torch.cat((table, table), -1) for table in (angles.cos(), angles.sin()))
    expected = ReferenceKernels().rope(qkv[:, :5], cos, sin)
    rest = qkv[:, 5:].clone()
    out = CpuKernels().rope(qkv[:, :5], cos, sin)

    assert torch.allclose(out, expected, atol=1e-6)
    assert torch.equal(qkv[:, 5:], rest)


def test_stored_keys_and_values_come_back_block_by_block() -> None:
    """Slots scattered over blocks are gathered in the order of the block ids."""
    cache = CpuDevice().allocate_kv(KVCacheSpec(1, 2, 8, 4, 6, "float32"))[0]
    key, value = rand(5, 2, 8), rand(5, 2, 8, seed=1)
    # Five tokens of a sequence with block table [3, 1]: slots 12..15, then 4.
    CpuKernels().store_kv(cache, key, value, torch.tensor([12, 13, 14, 15, 4]))
    keys, values = gather_blocks(cache, torch.tensor([3, 1]), 8)

    assert torch.equal(keys[:, :5], key.transpose(0, 1))
    assert torch.equal(values[:, :5], value.transpose(0, 1))
    assert cache[:, :, [0, 2, 4, 5]].abs().max() == 0


@pytest.mark.parametrize("form", sorted(set(_FORMS) - {"native"}))  # which test_native.py compiles first
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 16, 65])
def test_every_packed_form_is_the_same_linear(form, bias, rows) -> None:
    """X @ weight.T + bias, whatever the layout of the weight."""
    weight, offset, x = rand(40, 24), rand(40, seed=1) if bias else None, rand(rows, 24, seed=2)

    assert torch.allclose(_FORMS[form](weight, offset)(x), functional.linear(x, weight, offset), atol=1e-4)


def test_an_unused_cache_takes_no_memory() -> None:
    """1 GiB of KV cache adds less than 64 MiB to the resident set until somebody writes to it."""
    import psutil

    gc.collect()  # what earlier tests left must not be freed or grown while this one measures
    before = psutil.Process().memory_info().rss
    cache = CpuDevice().allocate_kv(KVCacheSpec(4, 8, 64, 16, 4096, "float32"))

    assert sum(layer.numel() * 4 for layer in cache) == 2**30
    assert psutil.Process().memory_info().rss - before < 64 * 2**20


def test_memory_errors_become_device_out_of_memory() -> None:
    """An allocation that the host cannot serve is a typed fault with a stable code."""
    from ascendd.errors import DeviceOutOfMemory

    with pytest.raises(DeviceOutOfMemory, match="host memory ran out"):
        CpuDevice().allocate_kv(KVCacheSpec(1, 2**10, 2**10, 2**10, 2**16, "float32"))
    assert CpuDevice().classify_fault(RuntimeError("shapes do not match")) is None
