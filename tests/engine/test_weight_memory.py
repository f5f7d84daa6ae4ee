"""Memory for packed weights: zeros that lie apart, on their own lines of the cache, and outlive their giver."""

from __future__ import annotations

import torch

from ascendd.device.kernels.weight_memory import WeightMemory


def test_tensors_are_zeros_that_never_overlap_and_begin_a_cache_line() -> None:
    """Odd sizes, several types and more than one shared mapping: what is written to one is read in no other."""
    memory = WeightMemory()
    shapes = [((3, 5, 16), torch.float16), ((7,), torch.uint8), ((1000, 4000), torch.float32), ((65, 64), torch.int8)]
    given = [memory.zeros(shape, dtype) for _ in range(4) for shape, dtype in shapes]
    assert all(not tensor.any() and tensor.is_contiguous() and tensor.data_ptr() % 64 == 0 for tensor in given)
    for number, tensor in enumerate(given, 1):
        tensor.fill_(number)
    assert all(bool((tensor == number).all()) for number, tensor in enumerate(given, 1))


def test_a_large_tensor_has_a_mapping_of_its_own_and_outlives_its_giver() -> None:
    """From 32 MiB on a tensor shares with nobody, begins a large page, and stays when the memory object is gone."""
    memory = WeightMemory()
    small = memory.zeros((16,), torch.float32)
    large = memory.zeros((9 * 2**20,), torch.float32)
    assert large.data_ptr() % 2**21 == 0
    assert large.untyped_storage().data_ptr() != small.untyped_storage().data_ptr()
    del memory
    large.fill_(2.0)
    assert float(large.sum()) == 2.0 * large.numel()
    assert not small.any()
