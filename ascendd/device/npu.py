"""NpuDevice: one Ascend NPU behind torch_npu. One process, one device; the runtime's numbering starts at 0 in each."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.nn import functional

from ascendd.config.plan import DeviceFacts
from ascendd.device.accelerator import Accelerator
from ascendd.device.base import (
    Capability,
    GraphBackend,
    KernelShapes,
    KernelVerdict,
    KVCacheSpec,
    Linear,
)
from ascendd.device.kernel_proof import compare, prove
from ascendd.device.kernels.npu import NpuKernels
from ascendd.device.kernels.npu_experts import StackedExperts
from ascendd.device.npu_faults import classify
from ascendd.device.npu_graphs import NpuGraphs
from ascendd.device.soc import ACL_FORMAT_FRACTAL_NZ, ACL_FORMAT_ND, FUSED_BLOCK_SIZE, profile_of
from ascendd.errors import AscenddError, DeviceUnavailable

# A projection whose rows do not fill whole fractal cells of 16 x 16 gains nothing from the cast.
_FRACTAL = 16


class NpuDevice(Accelerator):
    """
    Device `index` among those that ASCEND_RT_VISIBLE_DEVICES leaves, claimed for this process.

    Raises DeviceUnavailable where torch_npu, its CANN libraries or the device are not to be had.
    """

    kind = "npu"
    backend = "hccl"

    def __init__(self, index: int = 0) -> None:
        super().__init__(index, _open(index))
        self._soc_name: str = self._runtime.get_device_name(index)
        self._profile = profile_of(self._soc_name)
        self._weight_format = self._profile.weight_format
        self.kernels: NpuKernels = NpuKernels(self._profile.fused)

    @property
    def facts(self) -> DeviceFacts:
        memory = self.memory_info()
        return DeviceFacts(
            kind=self.kind,
            name=self._soc_name,
            total_bytes=memory.total_bytes,
            free_bytes=memory.free_bytes,
            fast_dtypes=self._profile.fast_dtypes,
            # 128 is what the fused attention reads; the others are served by the reference.
            block_sizes=(FUSED_BLOCK_SIZE, 16, 32, 64),
        )

    def supports(self, capability: Capability) -> bool:
        return capability is Capability.COLLECTIVES or self._profile.graphs

    def kv_shape(self, spec: KVCacheSpec) -> tuple[int, ...]:
        return 2, spec.num_blocks, spec.block_size, spec.num_kv_heads, spec.head_dim

    def pack_linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        if self._weight_format == ACL_FORMAT_FRACTAL_NZ and not any(size % _FRACTAL for size in weight.shape):
            weight = torch.ops.npu.npu_format_cast(weight, ACL_FORMAT_FRACTAL_NZ)
        return lambda x: functional.linear(x, weight, bias)

    def pack_experts(
        self, num: int, weights: Iterable[tuple[torch.Tensor, torch.Tensor]]
    ) -> Sequence[tuple[Linear, Linear]]:
        return StackedExperts(num, weights)

    def classify_fault(self, error: BaseException) -> AscenddError | None:
        return classify(error)

    @torch.inference_mode()  # as steps run: operators have another path where gradients could be wanted
    def prove_kernels(self, shapes: KernelShapes) -> list[KernelVerdict]:
        self.kernels.choose(shapes)
        verdicts = prove(self.kernels, self.torch_device(), shapes, self.synchronize)
        if self._weight_format != ACL_FORMAT_ND:
            verdicts.append(self._prove_weight_format(shapes))
        return verdicts

    def open_graphs(self) -> GraphBackend | None:
        end_pool = importlib.import_module("torch_npu")._C._npu_endAllocateToPool
        return NpuGraphs(self._index, end_pool) if self._profile.graphs else None

    def _prove_weight_format(self, shapes: KernelShapes) -> KernelVerdict:
        """Compare a projection with weights in the chip's format to the same in plain layout."""
        size, device, dtype = 4 * _FRACTAL, self.torch_device(), getattr(torch, shapes.dtype)
        generator = torch.Generator().manual_seed(0)
        weight, x = (torch.rand(size, size, generator=generator).to(device, dtype) for _ in range(2))
        try:
            expected = functional.linear(x, weight).float().cpu()
            actual = self.pack_linear(weight.clone(), None)(x).float().cpu()
            passed, detail = compare([actual], [expected], shapes.dtype)
        except Exception as error:  # as in kernel_proof
            passed, detail = False, str(error).strip().splitlines()[0][:300]
        if not passed:
            self._weight_format = ACL_FORMAT_ND
        return KernelVerdict("weight_format", passed, detail)


def why_unusable() -> str | None:
    """Return why this process can use no NPU, or None where it can. Imports torch_npu, so it takes seconds."""
    try:
        _import()
    except DeviceUnavailable as error:
        return error.message
    return None if torch.npu.is_available() else "torch_npu finds no device"  # type: ignore[attr-defined]


def _import() -> None:
    try:
        importlib.import_module("torch_npu")
    except Exception as error:  # what it finds wrong with CANN's folders it raises as that, bare
        raise DeviceUnavailable(
            f"torch_npu cannot be imported: {str(error).strip().splitlines()[0] if str(error).strip() else error!r}",
            remedy="Install the torch_npu that belongs to this torch, and let CANN's set_env.sh reach the service: "
            "`ascendd doctor --only service-environment`.",
        ) from error


def _open(index: int) -> Any:
    """Import torch_npu, claim device `index` and return torch.npu."""
    _import()
    npu: Any = torch.npu  # type: ignore[attr-defined]
    try:
        # First of all calls: on newer CANN versions everything else fails before a device is set.
        npu.set_device(index)
        npu.mem_get_info(index)
    except RuntimeError as error:
        fault = classify(error)
        if fault is None:
            raise DeviceUnavailable(f"NPU {index} cannot be opened: {str(error).splitlines()[0]}") from error
        raise fault from error
    return npu
