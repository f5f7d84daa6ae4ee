"""
Errors of CUDA and NCCL -> our typed errors.

The texts are those of cudaGetErrorString (CUDA Runtime API, "Error Handling" and the list of cudaError_t), which torch
puts behind "CUDA error:", and those that torch's allocator and its NCCL backend write.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

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


@dataclass(frozen=True, slots=True)
class CudaError:
    """One row: any of `texts` in an error stands for `kind`; `remedy` is for the operator."""

    texts: tuple[str, ...]
    kind: type[AscenddError]
    remedy: str = ""


# First match counts: a full memory shows in many texts, and a failed capture wraps what failed inside.
TABLE = (
    CudaError(
        ("CUDA out of memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"),
        DeviceOutOfMemory,
    ),
    CudaError(
        ("uncorrectable ECC error", "uncorrectable NVLink error"),
        DeviceEccError,
        "Run nvidia-smi -q -d ECC; drain the host and reset the GPU, or replace it where the counter grows.",
    ),
    CudaError(
        ("operation not permitted when stream is capturing", "operation failed due to a previous error during capture",
         "operation would make the legacy stream depend on a capturing"),
        GraphCaptureFailed,
    ),
    CudaError(
        ("GPU is lost", "has fallen off the bus", "CUDA error: unknown error", "system not yet initialized"),
        DeviceLost,
        "Look for Xid lines in the kernel log: journalctl -k -g Xid; reset the GPU or reboot the host.",
    ),
    CudaError(
        ("no CUDA-capable device is detected", "busy or unavailable", "invalid device ordinal",
         "CUDA driver version is insufficient", "Found no NVIDIA driver"),
        DeviceUnavailable,
        "Run nvidia-smi; check which processes hold the GPU and that the driver fits this torch.",
    ),
    CudaError(
        ("an illegal memory access was encountered", "device-side assert triggered", "unspecified launch failure",
         "misaligned address", "an illegal instruction was encountered", "hardware stack error",
         "the launch timed out and was terminated"),
        DeviceFault,
        "The process lost its GPU and is started again; where it repeats, set CUDA_LAUNCH_BLOCKING=1 in the unit.",
    ),
    CudaError(
        ("remote process exited", "NCCL communicator was aborted", "Watchdog caught collective operation timeout",
         "unhandled system error", "unhandled cuda error"),
        CollectiveTimeout,
    ),
)  # fmt: skip


def classify(error: BaseException) -> AscenddError | None:
    """Return the typed fault that `error` stands for, or None if it is not the GPU's."""
    if isinstance(error, AscenddError):
        return error
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError):
        return DeviceOutOfMemory(_first_line(text))
    for row in TABLE:
        if any(part in text for part in row.texts):
            fault = row.kind(f"CUDA: {_first_line(text)}", remedy=row.remedy or None)
            if row.kind is GraphCaptureFailed:
                fault.facts["cannot_capture"] = True  # fewer graphs would fail alike
            return fault
    return None


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0][:300] if lines else "no text"
