"""The real `ascendd exporter` with a recorded npu-smi on its path."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from loopback_ports import free_ports

pytestmark = pytest.mark.system
RECORDING = next((Path(__file__).resolve().parents[2] / "fixtures/npu-smi").glob("info-24.1.0-910B2-4npu*"))


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    """An npu-smi that prints a recording."""
    path = tmp_path / "bin/npu-smi"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\ncat {RECORDING}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def exporter(tool: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The exporter, reading once a second, and the address of its page."""
    (port,) = free_ports(1)
    command = [
        sys.executable,
        "-m",
        "ascendd",
        "exporter",
        "--port",
        str(port),
        "--interval",
        "1",
        "--npu-names",
        "always",
    ]
    environ = {**os.environ, "PATH": f"{tool.parent}:{os.environ['PATH']}", "XDG_RUNTIME_DIR": str(tmp_path)}
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, env=environ, stderr=log) as process:
        yield process, f"http://127.0.0.1:{port}/metrics"
        process.kill()


def page_with(url: str, line: str) -> str:
    """Return the page once it has `line`."""
    deadline, text = time.monotonic() + 90, ""
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                text = answer.read().decode()
        except OSError:
            text = ""
        if line in text:
            return text
        time.sleep(0.3)
    raise AssertionError(f"{line} did not come; the page: {text}")


def test_the_exporter_tells_of_chips_until_it_is_stopped(
    exporter: tuple[subprocess.Popen[bytes], str], tool: Path
) -> None:
    """Figures of four chips under both names; none once npu-smi fails, and SIGTERM ends it with 0."""
    process, url = exporter
    text = page_with(url, 'ascendd_chip_power_watts{chip="0",npu="0"} 281.6')

    assert 'npu_chip_info_power{id="0",model_name="910B2",pcie_bus_info="0000:C1:00.0"} 281.6' in text
    assert "ascendd_chips 4.0" in text
    tool.write_text("#!/bin/sh\necho 'dcmi module initialize failed. ret is -8005'\nexit 187\n")
    assert "ascendd_chip_power_watts{" not in page_with(url, "ascendd_chips_readable 0.0")
    process.send_signal(signal.SIGTERM)
    assert process.wait(90) == 0


def test_one_reading_is_printed(tool: Path) -> None:
    """`--once` prints the page of one reading and leaves."""
    done = subprocess.run(
        [sys.executable, "-m", "ascendd", "exporter", "--once", "--npu-names", "never"],
        env={**os.environ, "PATH": f"{tool.parent}:{os.environ['PATH']}"},
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip

    assert 'ascendd_chip_temperature_celsius{chip="0",npu="1"} 57.0' in done.stdout
    assert "npu_chip_info" not in done.stdout
