"""
The proof of the kernels, again and again: a JSON object of KernelShapes a line in; {kernel: [passed, detail]} a line out.

The device's own numbers are changed between two lines, from outside.
"""

from __future__ import annotations

import json
import sys

from ascendd.device.base import KernelShapes
from ascendd.device.npu import NpuDevice


def main() -> None:
    """Answer each line with a device of its own, as a start has."""
    for line in sys.stdin:
        verdicts = NpuDevice().prove_kernels(KernelShapes(**json.loads(line)))
        print("\n" + json.dumps({verdict.kernel: [verdict.passed, verdict.detail] for verdict in verdicts}), flush=True)


if __name__ == "__main__":
    main()
