"""Every call of the NPU's kernels beside the schemas and shape functions of the real torch_npu."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def test_calls_are_as_listed_and_renamed_ones_are_refused(make_machine, tmp_path) -> None:
    """
    The forward pass of every architecture makes the calls of operator_calls.json, with the version it names.

    To renew the list after a change of the kernels: python tests/npu/contract.py tests/npu/operator_calls.json, in the
    environment of a stand-in machine.
    """
    listed = json.loads((HERE / "operator_calls.json").read_text(encoding="utf-8"))
    done = subprocess.run(
        [sys.executable, str(HERE / "contract.py"), str(tmp_path / "calls.json")],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
        env=make_machine().environment(OMP_NUM_THREADS="1"),
    )
    assert done.returncode == 0, done.stderr[-3000:]

    assert json.loads((tmp_path / "calls.json").read_text(encoding="utf-8")) == listed
    assert json.loads(done.stdout.strip().splitlines()[-1]) == {"unrefused": []}
    assert sum(len(call["keywords"]) for call in listed["calls"]) > 30
