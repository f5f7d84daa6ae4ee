"""Why vLLM ended, from its last lines."""

from __future__ import annotations

import pytest

from ascendd import errors
from ascendd.vllm.log_faults import find_broken_installation, find_fault, last_error

WRAPPED = (
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in "
         "KV cache (103632).", errors.PlanDoesNotFit),
        ("ValueError: To serve at least one request with the models's max seq len (40960), (4.38 GiB KV cache is needed, "
         "which is larger than the available KV cache memory (2.1 GiB).", errors.PlanDoesNotFit),
        ("(EngineCore_DP0 pid=1102) ValueError: No available memory for the cache blocks. Try", errors.PlanDoesNotFit),
        ("RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 29.50 GiB total)", errors.DeviceOutOfMemory),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.", errors.DeviceOutOfMemory),
        ("ValueError: Free memory on device (3.1/31.7 GiB) on startup is less than desired GPU memory utilization (0.9)",
         errors.DeviceUnavailable),
        ("ValueError: Model architectures ['Foo'] are not supported for now. Supported architectures: x",
         errors.ModelUnsupported),
        ("ValueError: Total number of attention heads (28) must be divisible by tensor parallel size (8).",
         errors.ConfigInvalid),
        ("vllm: error: unrecognized arguments: --uds", errors.ConfigInvalid),
        ("safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge", errors.WeightsCorrupt),
        ("OSError: libascendcl.so: cannot open shared object file: No such file", errors.PreflightFailed),
        ("TimeoutError: RPC call to execute_model timed out.", errors.CollectiveTimeout),
        ("ERROR 01-01 00:00:00 [multiproc.py:9] Worker proc VllmWorker-1 died unexpectedly, shutting down executor.",
         errors.WorkerLost),
        ("RuntimeError: c10_npu::acl::AclmdlRICaptureBegin(capture_stream_, capture_mode), error code is 207005",
         errors.GraphCaptureFailed),
    ],
)  # fmt: skip
def test_a_cause_is_named_before_what_wraps_it(line, kind):
    """The earliest specific line decides, and the message repeats it; the wrapper behind it does not count."""
    fault = find_fault(["INFO 01-01 loading", line, WRAPPED])

    assert type(fault) is kind
    assert line[-25:] in fault.message


def test_a_wrapper_alone_is_a_dead_engine():
    """Where nothing better is there, the end of the engine core itself is told."""
    assert type(find_fault(["INFO x", WRAPPED])) is errors.EngineDead


def test_news_and_warnings_end_nothing():
    """A line that tells of memory as news is no cause."""
    lines = [
        "WARNING 01-01 00:00:00 [x.py:1] NPU out of memory was seen by another process",
        "INFO 01-01 [x] Address already in use",
    ]

    assert find_fault(lines) is None


@pytest.mark.parametrize(
    "line",
    [
        "ModuleNotFoundError: No module named 'torchvision'",
        "(EngineCore_DP0 pid=7) ImportError: cannot import name 'x' from 'transformers' (/v/lib/transformers/__init__.py)",
        "OSError: Could not load this library: /v/lib/python3.11/site-packages/torchaudio/lib/libtorchaudio.so",
        "OSError: libtorch_cuda.so: cannot open shared object file: No such file or directory",
    ],
)
def test_an_environment_that_cannot_be_imported_is_not_tried_again(line):
    """The last failed import is told, as a class that no restart mends; the wrapper behind it does not hide it."""
    optional = "ImportError: an optional package"
    fault = find_broken_installation(["Traceback (most recent call last):", optional, line, WRAPPED])

    assert type(fault) is errors.PreflightFailed
    assert fault.permanent
    assert line[-25:] in fault.message
    assert "engine.vllm.venv" in fault.remedy


def test_a_failed_import_that_only_warns_breaks_nothing():
    """What vLLM logs of packages it can do without is no cause, nor is an end without any."""
    lines = ["WARNING 01-01 00:00:00 [x.py:1] ImportError: No module named 'y'", "KeyError: 'x'"]

    assert find_broken_installation(lines) is None


def test_the_last_error_is_told_without_its_prefix():
    """What reads like an error is preferred to what came last."""
    lines = ["(EngineCore pid=3) ERROR 01-01 00:00:00 [core.py:1] KeyError: 'x'", "INFO shutting down"]

    assert last_error(lines) == "KeyError: 'x'"
    assert last_error([]) == ""
