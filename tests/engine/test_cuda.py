"""The CUDA device without a GPU: its kernels and graphs on host tensors, its calls on a recorder, its errors by text."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch

from ascendd.config.model_facts import read_model_facts
from ascendd.config.resolve import resolve
from ascendd.config.schema import EngineSection, InstanceConfig, ModelSection
from ascendd.device import cuda
from ascendd.device.base import Capability, KVCacheSpec
from ascendd.device.cuda import CudaDevice, CudaGraph, CudaGraphs
from ascendd.device.cuda_faults import classify
from ascendd.device.detect import make_device
from ascendd.device.kernels.cuda import CudaKernels
from ascendd.engine.core import EngineCore
from ascendd.engine.exec.executor import InProcessExecutor
from ascendd.engine.runner.model_runner import ModelRunner
from ascendd.errors import (
    AscenddError,
    CollectiveTimeout,
    DeviceEccError,
    DeviceFault,
    DeviceLost,
    DeviceOutOfMemory,
    DeviceUnavailable,
    GraphCaptureFailed,
)

PROMPTS = [[1, 2, 3], list(range(5, 45)), [7] * 20, [9, 8], [4, 4, 4, 4]]
GIB = 1 << 30


class FakeCuda:
    """Answers as torch.cuda does, and keeps the names of what was called; tensors lie in host memory."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.peak = self.allocated = 2 * GIB
        self.failure: Exception | None = None

    def __getattr__(self, name: str) -> Callable[..., object]:
        answers = {
            "get_device_name": "NVIDIA Test", "is_bf16_supported": True, "mem_get_info": (60 * GIB, 80 * GIB),
            "memory_reserved": 5 * GIB, "memory_allocated": self.allocated, "max_memory_allocated": self.peak,
            "graph_pool_handle": (0, 1), "CUDAGraph": SimpleNamespace(replay=lambda: None, reset=lambda: None),
        }  # fmt: skip

        def call(*_args: object, **_kwargs: object) -> object:
            self.calls.append(name)
            return answers.get(name)

        return call

    @contextlib.contextmanager
    def graph(self, _graph: object, *, pool: object) -> Iterator[None]:
        assert pool is not None
        yield
        if self.failure is not None:
            raise self.failure


class HostCuda(CudaDevice):
    """The device with its tensors in host memory and closures for graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.replayed: list[list[int]] = []

    def torch_device(self) -> str:
        return "cpu"

    def open_graphs(self):
        super().open_graphs()
        outer, kernels = self, self.kernels

        def capture(work: Callable[[], torch.Tensor]):
            result = work()
            again = SimpleNamespace(replay=lambda: result.copy_(work()))
            graph = CudaGraph(again, kernels)

            def replay(kv_lengths: list[int]) -> None:
                outer.replayed.append(list(kv_lengths))
                graph.replay(kv_lengths)

            return SimpleNamespace(replay=replay), result

        return SimpleNamespace(capture=capture, close=lambda: None)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr(cuda, "_open", lambda _index: fake)
    return fake


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("family", ["qwen2", "deepseek_v2"])
def test_captured_decodes_give_the_tokens_of_eager_ones(tiny_model, generate, family) -> None:
    """Lengths come from the tensor that each replay fills; rows of all lengths, padding among them, attend as eagerly."""
    folder, _ = tiny_model(family)
    facts = read_model_facts(folder)

    def core(**engine: object) -> tuple[EngineCore, HostCuda]:
        device = HostCuda()
        section = EngineSection(max_num_seqs=5, max_num_blocks=64, **engine)  # type: ignore[arg-type]
        config = resolve(
            InstanceConfig(model=ModelSection(path=str(folder), dtype="float32"), engine=section), facts, device.facts
        )
        runner = ModelRunner(config, facts, device)
        runner.capture_graphs()
        return EngineCore(config, InProcessExecutor(runner), facts.eos_token_ids), device

    eager, _ = core(enforce_eager=True)
    expected = generate(eager, PROMPTS, 10)
    graphed, device = core()

    assert generate(graphed, PROMPTS, 10) == expected
    assert graphed.report.num_replays > 5
    assert any(len(set(lengths)) > 1 for lengths in device.replayed)


def test_facts_and_memory_are_what_the_runtime_says(fake) -> None:
    """Free memory includes what the allocator holds unused; bfloat16 comes first where the GPU has it."""
    device = CudaDevice(1)

    assert device.facts.fast_dtypes == ("bfloat16", "float16", "float32")
    assert device.memory_info().free_bytes == 63 * GIB
    assert (device.torch_device(), device.collective_backend(), device.facts.kind) == ("cuda:1", "nccl", "cuda")
    assert all(device.supports(capability) for capability in Capability)
    assert "set_device" not in fake.calls


def test_the_peak_is_measured_between_two_synchronizations(fake) -> None:
    """What the work raised the allocated memory by at its highest, not what is left afterwards."""

    def work() -> None:
        fake.calls.append("work")
        fake.peak = 3 * GIB

    assert CudaDevice().peak_memory(work) == GIB
    place = fake.calls.index("work")
    assert fake.calls[place - 3 : place + 3] == [
        "synchronize", "memory_allocated", "reset_peak_memory_stats", "work", "synchronize", "max_memory_allocated",
    ]  # fmt: skip


@pytest.mark.usefixtures("fake")
def test_a_cache_that_does_not_fit_is_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The allocator's error becomes ours, with its text."""

    def full(*_args: object, **_kwargs: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has 79 GiB")

    monkeypatch.setattr(torch, "zeros", full)

    with pytest.raises(DeviceOutOfMemory, match="Tried to allocate"):
        CudaDevice().allocate_kv(KVCacheSpec(1, 2, 64, 16, 8, "bfloat16"))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported", DeviceOutOfMemory),
        ("CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", DeviceOutOfMemory),
        ("CUDA error: uncorrectable ECC error encountered", DeviceEccError),
        ("CUDA error: an illegal memory access was encountered", DeviceFault),
        ("CUDA error: device-side assert triggered", DeviceFault),
        ("CUDA error: operation not permitted when stream is capturing", GraphCaptureFailed),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", DeviceUnavailable),
        ("CUDA error: unknown error", DeviceLost),
        ("NCCL error: remote process exited or there was a network error", CollectiveTimeout),
    ],
)
def test_errors_of_the_runtime_become_ours(text, kind) -> None:
    """By what the runtime says; the first line is kept for the operator."""
    fault = classify(RuntimeError(text))

    assert type(fault) is kind
    assert text.splitlines()[0] in fault.message


def test_other_errors_are_not_the_gpus() -> None:
    """A shape that does not fit is a fault of ours and stays one."""
    assert classify(RuntimeError("mat1 and mat2 shapes cannot be multiplied (1x2 and 3x4)")) is None
    assert classify(ValueError("no")) is None


def test_a_capture_that_cannot_be_says_so(fake) -> None:
    """What failed inside counts, not the failure to leave the capture; fewer graphs would not help."""
    backend = CudaGraphs(fake, CudaKernels(), 0)

    def work() -> torch.Tensor:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    with pytest.raises(GraphCaptureFailed) as caught:
        backend.capture(work)
    assert caught.value.facts["cannot_capture"]
    fake.failure = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")
    with pytest.raises(DeviceOutOfMemory):
        backend.capture(lambda: torch.zeros(1))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a GPU")
def test_a_host_without_a_gpu_says_what_is_missing() -> None:
    """Before anything is loaded, with what to do."""
    with pytest.raises(AscenddError) as caught:
        make_device("cuda")

    assert type(caught.value) is DeviceUnavailable
    assert "nvidia-smi" in str(caught.value.remedy)
