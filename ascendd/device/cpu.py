"""CpuDevice: the host's own cores and memory, the default where no accelerator is."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional

from ascendd.config.plan import DeviceFacts
from ascendd.device.base import Capability, Device, KernelShapes, KernelVerdict, KVCacheSpec, Linear, MemoryInfo
from ascendd.device.kernels.cpu import CpuKernels
from ascendd.device.kernels.native import NativeKernels, suits
from ascendd.device.kernels.native_library import native_library
from ascendd.device.kernels.native_linear import NativeLinear
from ascendd.device.kernels.weight_memory import WeightMemory
from ascendd.device.resident_memory import resident_bytes, resident_peak
from ascendd.errors import ConfigInvalid, DeviceOutOfMemory
from ascendd.host.anonymous_memory import ZERO_DEVICE
from ascendd.host.files import HostFiles
from ascendd.host.memory import read_memory

# Batch sizes that stand for a lone decode, a batch of decodes and a prefill chunk.
_PROBE_BATCHES = (1, 8, 64)
_PROBE_REPEATS = 6
# The batch that the packed layout is chosen for; it serves every other size, too.
_PACK_BATCH = 16
# A step of 512 tokens takes a large model tens of seconds on a few cores, and memory here is the host's, which the plan
# uses with a reserve anyway; so a start profiles a step that costs no more than its warm-up, and takes it as the least.
_PROFILE_TOKENS = 16
# Below this a huge page would cost more than it saves.
_HUGE_FROM_BYTES = 2**22
_USUAL_WINNERS = ("native", "onednn")
_CLEAR_MARGIN = 1.5
# Of a larger weight only so much is measured: a copy of all of it in each form would be the peak of a start's memory.
_PROBE_BYTES = 2**24


class CpuDevice(Device):
    """Tensors in host memory; linears packed by a short measurement at load, once per shape."""

    def __init__(self, *, pack: bool = True) -> None:
        self.kernels = CpuKernels()
        self._pack = pack
        self._weight_dtype: torch.dtype | None = None
        self._packers: dict[tuple[int, int, torch.dtype], str] = {}
        self._weight_memory = WeightMemory()

    @property
    def facts(self) -> DeviceFacts:
        memory = self.memory_info()
        return DeviceFacts(
            kind="cpu",
            name=_cpu_name(),
            total_bytes=memory.total_bytes,
            free_bytes=memory.free_bytes,
            fast_dtypes=_fast_dtypes(),
            block_sizes=(16, 32, 64, 128),  # a gather takes any size; these are what a configuration may ask for
            max_profile_tokens=_PROFILE_TOKENS,
            num_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        )

    def supports(self, capability: Capability) -> bool:
        return capability is Capability.COLLECTIVES

    def torch_device(self) -> str:
        return "cpu"

    def memory_info(self) -> MemoryInfo:
        memory = read_memory(HostFiles())
        return MemoryInfo(free_bytes=memory.usable_bytes, total_bytes=memory.ceiling_bytes)

    def used_bytes(self) -> int:
        return resident_bytes()

    def collective_backend(self) -> str:
        return "gloo"

    def peak_memory(self, work: Callable[[], None]) -> int:
        return resident_peak(work)

    def empty_cache(self) -> None:
        """Nothing is cached: the C allocator gives large blocks back at once."""

    def allocate_kv(self, spec: KVCacheSpec) -> list[torch.Tensor]:
        shape: tuple[int, ...] = (2, spec.num_kv_heads, spec.num_blocks, spec.block_size * spec.head_dim)
        if spec.is_latent:
            shape = (spec.num_blocks, spec.block_size, spec.head_dim)
        try:
            return _lazy_zeros(shape, getattr(torch, spec.dtype), spec.num_layers)
        except (RuntimeError, MemoryError, OSError) as error:
            raise self.classify_fault(error) or error from error

    def prove_kernels(self, shapes: KernelShapes) -> list[KernelVerdict]:
        """Take the native kernels where they were compiled and suit the model; the tests hold them to the reference."""
        if type(self.kernels) in {CpuKernels, NativeKernels}:  # a device derived from this one may bring its own
            self.kernels = NativeKernels() if suits(shapes) else CpuKernels()
        return []

    def use_weight_dtype(self, name: str) -> None:
        if native_library() is None:
            raise ConfigInvalid(
                f"$.engine.weight_dtype = {name}: this installation has no native kernels for it; write auto, or "
                "install ascendd (again, if its kernels are of another version) where a C compiler is, on a core with "
                "AVX2 or NEON"
            )
        self._weight_dtype = getattr(torch, name)

    def pack_linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        if self._weight_dtype is not None:
            return NativeLinear(weight, bias, self._weight_dtype, self._weight_memory)
        key = (weight.shape[0], weight.shape[1], weight.dtype)
        if not self._pack:
            return _plain(weight, bias)
        if key not in self._packers:
            self._packers[key] = _fastest(weight, bias)
        if self._packers[key] == "native":
            return NativeLinear(weight, bias, weight.dtype, self._weight_memory)
        return _FORMS[self._packers[key]](weight, bias)

    def classify_fault(self, error: BaseException) -> DeviceOutOfMemory | None:
        text = str(error)
        is_refused = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        if is_refused or "can't allocate memory" in text or "not enough memory" in text:
            return DeviceOutOfMemory(f"host memory ran out: {text or 'MemoryError'}")
        return None


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, num: int) -> list[torch.Tensor]:
    """
    Return `num` tensors of zeros whose pages the kernel provides when first used, so that an idle cache costs nothing.

    They lie in one private mapping of /dev/zero, by whose name the growth of a cache is told from a leak.
    """
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    stride = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    fd = os.open(ZERO_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    try:
        pages = mmap.mmap(fd, num * stride, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(fd)
    if len(pages) >= _HUGE_FROM_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(pages, dtype=torch.uint8)
    return [whole[at : at + num_bytes].view(dtype).view(shape) for at in range(0, num * stride, stride)]


def _plain(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    return lambda x: functional.linear(x, weight, bias)


def _transposed(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    stored = weight.t().contiguous()  # [in, out]
    if bias is None:
        return lambda x: torch.mm(x, stored)
    return lambda x: torch.addmm(bias, x, stored)


def _onednn(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    # Private operators: looked up here, so that a torch without them raises AttributeError and the form is left out.
    ops = torch.ops.mkldnn
    packed = ops._reorder_linear_weight(weight.contiguous(), _PACK_BATCH)
    linear = ops._linear_pointwise
    return lambda x: linear(x, packed, bias, "none", [], "")


def _native(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    # As for a torch without an operator: the form is left out of the choice.
    if native_library() is None:
        raise NotImplementedError("this installation has no native kernels")
    if weight.dtype is not torch.float32:
        raise NotImplementedError(f"the native form takes float32 weights, not {weight.dtype}")
    return NativeLinear(weight, bias, weight.dtype)


_FORMS: dict[str, Callable[[torch.Tensor, torch.Tensor | None], Linear]] = {
    "plain": _plain,
    "transposed": _transposed,
    "onednn": _onednn,
    "native": _native,
}


def _fastest(weight: torch.Tensor, bias: torch.Tensor | None) -> str:
    """
    Time each form on this shape; the score is the sum over batch sizes of time relative to the best form there.

    The forms take turns, so that a busy moment hurts all of them, and another form must beat the usual winner clearly:
    these measurements are short, with weights warm in the cache; a wrong choice costs more than a missed one gains.
    """
    forms: dict[str, Linear] = {}
    num_features = max(1, _PROBE_BYTES // (weight.shape[1] * weight.itemsize))
    weight, bias = weight[:num_features], None if bias is None else bias[:num_features]
    for name, make in _FORMS.items():
        try:
            forms[name] = make(weight, bias)
            forms[name](torch.zeros(1, weight.shape[1], dtype=weight.dtype))
        except (AttributeError, RuntimeError, NotImplementedError):
            forms.pop(name, None)
    scores = dict.fromkeys(forms, 0.0)
    usual = next((name for name in _USUAL_WINNERS if name in forms), "plain")
    # The native form holds its own at every size, so only one that is clearly ahead at each of them displaces it.
    rivals = set(forms) - {"native"}
    for size in _PROBE_BATCHES:
        x = torch.randn(size, weight.shape[1], dtype=weight.dtype)
        times = dict.fromkeys(forms, float("inf"))
        for _ in range(_PROBE_REPEATS):
            for name, linear in forms.items():
                start = time.perf_counter()
                linear(x)
                times[name] = min(times[name], time.perf_counter() - start)
        for name in forms:
            scores[name] += times[name] / min(times.values())
        rivals = {name for name in rivals if times[name] * _CLEAR_MARGIN < times[usual]}
        if usual == "native" and not rivals:
            return usual
    winner = min(scores, key=lambda name: scores[name])
    return winner if scores[winner] * _CLEAR_MARGIN < scores[usual] else usual


def _fast_dtypes() -> tuple[str, ...]:
    """Return float32, and bfloat16 where the core multiplies it natively (upconverting is 5x slower than float32)."""
    capability = torch.backends.cpu.get_cpu_capability()
    flags = _cpu_flags()
    if capability.startswith("AVX512") and ("avx512_bf16" in flags or "amx_bf16" in flags):
        return ("float32", "bfloat16")
    return ("float32",)


def _cpu_flags() -> frozenset[str]:
    return frozenset(_cpuinfo("flags").split() + _cpuinfo("Features").split())


def _cpu_name() -> str:
    return _cpuinfo("model name") or platform.machine()


def _cpuinfo(key: str) -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() == key:
                    return value.strip()
    except OSError:
        pass
    return ""
