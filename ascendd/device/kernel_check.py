"""
The proof of the fused kernels as a program of its own: `ascendd doctor --deep` runs it with the service's environment.

Reads one JSON object on standard input: {"device", "model_path" or null, "tensor_parallel_size"}. Writes one JSON
object to standard output: {"device", "torch_npu", "verdicts": [{"kernel", "passed", "detail"}]} or {"fault": {"code",
"message", "remedy"}}.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ascendd.config.model_facts import read_model_facts
from ascendd.device.base import KernelShapes, KernelVerdict
from ascendd.device.kernel_shapes import USUAL_SHAPES, kernel_shapes
from ascendd.errors import AscenddError


def main() -> int:
    """Prove the kernels and print what was found."""
    request = json.load(sys.stdin)
    try:
        answer = _prove(request)
    except AscenddError as error:
        answer = {"fault": {"code": error.code, "message": error.message, "remedy": error.remedy}}
    print(json.dumps(answer), flush=True)  # noqa: T201 - the answer to the parent
    return 0


def _prove(request: dict[str, Any]) -> dict[str, Any]:
    from ascendd.device.npu import NpuDevice

    device = NpuDevice(int(request["device"]))
    name, block_size = device.facts.name, device.facts.block_sizes[0]
    wanted: tuple[KernelShapes, ...] = USUAL_SHAPES
    if request["model_path"]:
        facts, dtypes = read_model_facts(Path(request["model_path"])), device.facts.fast_dtypes
        dtype = facts.dtype if facts.dtype in dtypes else dtypes[0]
        tp_size = int(request["tensor_parallel_size"])
        wanted = (kernel_shapes(facts, dtype=dtype, tp_size=tp_size, block_size=block_size),)
    verdicts: dict[str, KernelVerdict] = {}
    for shapes in wanted:
        # A fresh set of kernels each, as a failure in one would leave the operator out of the next.
        for verdict in NpuDevice(int(request["device"])).prove_kernels(shapes):
            if verdict.kernel not in verdicts or not verdict.passed:
                verdicts[verdict.kernel] = verdict
    return {
        "device": name,
        "torch_npu": importlib.metadata.version("torch-npu"),
        "verdicts": [asdict(verdict) for verdict in verdicts.values()],
    }


if __name__ == "__main__":
    sys.exit(main())
