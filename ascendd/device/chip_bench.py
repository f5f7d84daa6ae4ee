"""
How fast one NPU multiplies matrices and moves memory, as a program of its own: `ascendd doctor --deep` runs it.

Reads one JSON object on standard input: {"device"}. Writes one JSON object a line: {"step": name} before each part, so
that a hang has a name, and at the end {"speed": {"soc_name", "matmul_tflops", "matmul_size", "memory_gb_per_s",
"memory_bytes", "wrong"}} or {"fault": {"code", "message", "remedy"}}. `wrong` says what came out wrong, or is null.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from ascendd.errors import AscenddError

# Long enough that what a launch costs the host does not show.
_LONG_S = 0.002
_MEASURE_S = 0.25
_SMALLEST, _LARGEST = 256, 8192
# Far beyond the cache of any chip, which would be measured otherwise.
_FEWEST_BYTES, _MOST_BYTES = 16 << 20, 2 << 30


def main() -> int:
    """Measure and print."""
    request = json.load(sys.stdin)
    device: Any = None
    try:
        say({"step": "open the device"})
        from ascendd.device.npu import NpuDevice

        device = NpuDevice(int(request["device"]))
        answer: dict[str, Any] = {
            "speed": measure(device.facts.name, device.torch_device(), device.memory_info().free_bytes)
        }
    except (AscenddError, RuntimeError) as error:
        fault = error if isinstance(error, AscenddError) else device.classify_fault(error) if device else None
        if fault is None:
            raise
        answer = {"fault": {"code": fault.code, "message": fault.message, "remedy": fault.remedy}}
    say(answer)
    return 0


@torch.inference_mode()
def measure(soc_name: str, device: str, free_bytes: int) -> dict[str, Any]:
    """Return the speeds of `device`; sizes grow until one call takes long enough to be timed."""
    say({"step": "multiply matrices"})
    size, seconds, wrong = _products(device)
    say({"step": "copy memory"})
    num_bytes, copy_s, miscopied = _copies(device, min(_MOST_BYTES, free_bytes // 4))
    return {
        "soc_name": soc_name,
        "matmul_tflops": 2 * size**3 / seconds / 1e12,
        "matmul_size": size,
        # What is read and what is written.
        "memory_gb_per_s": 2 * num_bytes / copy_s / 1e9,
        "memory_bytes": num_bytes,
        "wrong": wrong or miscopied,
    }


def _products(device: str) -> tuple[int, float, str | None]:
    """Return (n, seconds of one product of n x n in float16, what was wrong with it)."""
    size = _SMALLEST
    while True:
        # Each row of ones times a column of quarters is n / 4, exact in float16 up to the largest n.
        left = torch.ones(size, size, dtype=torch.float16, device=device)
        right = torch.full((size, size), 0.25, dtype=torch.float16, device=device)
        result = left @ right
        seconds = _once(lambda a=left, b=right, out=result: torch.mm(a, b, out=out))  # type: ignore[misc]
        if seconds >= _LONG_S or size >= _LARGEST:
            break
        size *= 2
    seconds = _often(lambda: torch.mm(left, right, out=result), seconds)
    low, high = float(result.min()), float(result.max())
    is_right = low == high == size / 4
    return size, seconds, None if is_right else f"a product of {size / 4:g} came out between {low:g} and {high:g}"


def _copies(device: str, most: int) -> tuple[int, float, str | None]:
    """Return (bytes, seconds of one copy within the device, what was wrong with it)."""
    num_bytes = _FEWEST_BYTES
    while True:
        source = torch.arange(num_bytes // 4, dtype=torch.int32, device=device)
        target = torch.zeros_like(source)
        target.copy_(source)
        seconds = _once(lambda a=source, b=target: b.copy_(a))  # type: ignore[misc]
        if seconds >= _LONG_S or 2 * num_bytes > most:
            break
        num_bytes *= 2
    seconds = _often(lambda: target.copy_(source), seconds)
    num_wrong = int((target != source).sum())
    return (
        num_bytes,
        seconds,
        f"{num_wrong} of {num_bytes // 4} words came out changed by a copy" if num_wrong else None,
    )


def _synchronize() -> None:
    torch.npu.synchronize()  # type: ignore[attr-defined]


def _once(work: Callable[[], object]) -> float:
    _synchronize()
    started = time.perf_counter()
    work()
    _synchronize()
    return time.perf_counter() - started


def _often(work: Callable[[], object], seconds: float) -> float:
    """Return the seconds of one call: of the best of three rows, each long enough to hide its beginning."""
    calls = max(1, round(_MEASURE_S / max(seconds, 1e-6)))
    best = float("inf")
    for _ in range(3):
        _synchronize()
        started = time.perf_counter()
        for _ in range(calls):
            work()
        _synchronize()
        best = min(best, (time.perf_counter() - started) / calls)
    return best


def say(message: dict[str, Any]) -> None:
    """Write one line to the parent."""
    print(json.dumps(message), flush=True)  # noqa: T201 - the answer to the parent


if __name__ == "__main__":
    sys.exit(main())
