"""CudaDevice: one NVIDIA GPU behind torch.cuda. One process, one device; CUDA_VISIBLE_DEVICES gives the numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from ascendd.config.plan import DeviceFacts
from ascendd.device.accelerator import Accelerator
from ascendd.device.base import Capability, CapturedGraph, GraphBackend, KVCacheSpec, Linear
from ascendd.device.cuda_faults import classify
from ascendd.device.kernels.cuda import CudaKernels
from ascendd.errors import AscenddError, DeviceUnavailable


class CudaDevice(Accelerator):
    """
    GPU `index` among those that CUDA_VISIBLE_DEVICES leaves, claimed for this process.

    Raises DeviceUnavailable where this torch has no CUDA, or the GPU is not to be had.
    """

    kind = "cuda"
    backend = "nccl"

    def __init__(self, index: int = 0) -> None:
        super().__init__(index, _open(index))
        self._name: str = self._runtime.get_device_name(index)
        self.kernels: CudaKernels = CudaKernels()

    @property
    def facts(self) -> DeviceFacts:
        memory = self.memory_info()
        has_bfloat16 = bool(self._runtime.is_bf16_supported())
        return DeviceFacts(
            kind=self.kind,
            name=self._name,
            total_bytes=memory.total_bytes,
            free_bytes=memory.free_bytes,
            fast_dtypes=("bfloat16", "float16", "float32") if has_bfloat16 else ("float16", "float32"),
            block_sizes=(16, 32, 64, 128),  # a gather takes any size
        )

    def supports(self, capability: Capability) -> bool:
        return capability in (Capability.COLLECTIVES, Capability.GRAPHS)

    def kv_shape(self, spec: KVCacheSpec) -> tuple[int, ...]:
        # As the reference gathers it: blocks of one head follow each other.
        return 2, spec.num_kv_heads, spec.num_blocks, spec.block_size * spec.head_dim

    def pack_linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        return lambda x: functional.linear(x, weight, bias)

    def classify_fault(self, error: BaseException) -> AscenddError | None:
        return classify(error)

    def open_graphs(self) -> GraphBackend:
        self.kernels.open_lengths(self.torch_device())
        return CudaGraphs(self._runtime, self.kernels, self._index)


class CudaGraph:
    """One captured step; attention reads the lengths from a tensor that each replay fills first."""

    def __init__(self, graph: Any, kernels: CudaKernels) -> None:
        self._graph = graph
        self._kernels = kernels

    def replay(self, kv_lengths: list[int]) -> None:
        """See device.base.CapturedGraph."""
        self._kernels.set_lengths(kv_lengths)
        self._graph.replay()


class CudaGraphs:
    """See device.base.GraphBackend."""

    def __init__(self, cuda: Any, kernels: CudaKernels, index: int) -> None:
        self._cuda = cuda
        self._kernels = kernels
        self._index = index
        self._pool: Any = None
        self._graphs: list[Any] = []

    def capture(self, work: Callable[[], torch.Tensor]) -> tuple[CapturedGraph, torch.Tensor]:
        graph = self._cuda.CUDAGraph()
        if self._pool is None:
            self._pool = self._cuda.graph_pool_handle()
        try:
            with self._cuda.graph(graph, pool=self._pool):
                result = work()
            self._cuda.synchronize(self._index)
        except RuntimeError as error:
            # Leaving the capture fails, too, where something inside did, and hides it.
            fault = (error.__context__ and classify(error.__context__)) or classify(error)
            raise (fault or error) from error
        self._graphs.append(graph)
        return CudaGraph(graph, self._kernels), result

    def close(self) -> None:
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()
        self._pool = None
        self._cuda.empty_cache()


def _open(index: int) -> Any:
    """Claim GPU `index` and return torch.cuda."""
    cuda: Any = torch.cuda
    if not cuda.is_available():
        built = "has no CUDA in it" if torch.version.cuda is None else f"for CUDA {torch.version.cuda} finds no GPU"
        raise DeviceUnavailable(
            f"torch {torch.__version__} {built}",
            remedy="Run nvidia-smi; install a torch built for CUDA; or write `device: cpu` in the engine section.",
        )
    if index >= cuda.device_count():
        raise DeviceUnavailable(
            f"GPU {index} is not there: this process sees {cuda.device_count()}",
            remedy="Lower tensor_parallel_size x pipeline_parallel_size, or list the GPUs in parallel.devices.",
        )
    try:
        cuda.set_device(index)
        cuda.mem_get_info(index)
    except RuntimeError as error:
        raise classify(error) or error from error
    return cuda
