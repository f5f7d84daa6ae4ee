"""An instance whose installation is not whole: it fails at once with the name of the part, and is not tried again."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

HERE = Path(__file__).parent
CONFIG = "model: {{path: {model}, name: m}}\nlisten: {{port: 0}}\nmetrics: {{port: 0}}\nengine: {{device: cpu}}\n"


def test_a_missing_module_fails_the_instance_at_once(tmp_path) -> None:
    """The engine's program cannot be imported: one start, exit status 71, and the module's name with its remedy."""
    model = runpy.run_path(str(HERE.parent / "tiny_qwen2.py"))["write"](tmp_path / "m")
    (tmp_path / "instance.yaml").write_text(CONFIG.format(model=model))
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "torch.py").write_text("import part_of_torch_that_is_gone\n")
    environ = {**os.environ, "PYTHONPATH": str(broken), "XDG_RUNTIME_DIR": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-m", "ascendd", "run", "--instance", "i", "--config", str(tmp_path / "instance.yaml")],
        env=environ, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip

    assert done.returncode == 71, done.stderr
    assert "error ASD-H05: the Python module part_of_torch_that_is_gone is not installed" in done.stderr
    assert "-m pip install part_of_torch_that_is_gone" in done.stderr
    assert done.stderr.count('"event": "supervisor.child_started", "child": "engine"') == 1
