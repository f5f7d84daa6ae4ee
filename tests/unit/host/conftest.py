"""Recorded outputs of the vendor's tool, and a host of files below a folder."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ascendd.host.command import CommandOutcome
from ascendd.host.files import HostFiles

RECORDINGS = Path(__file__).resolve().parents[2] / "fixtures" / "npu-smi"


@pytest.fixture
def recording() -> Callable[[str], str]:
    """Return the text of the recording of that name, or the one whose name begins so."""

    def read(prefix: str) -> str:
        (path,) = RECORDINGS.glob(prefix if prefix.endswith(".txt") else prefix + "*.txt")
        return path.read_text()

    return read


@pytest.fixture
def outcome() -> Callable[..., CommandOutcome]:
    """Make the outcome of one command."""

    def make(stdout: str, status: int = 0, stderr: str = "") -> CommandOutcome:
        return CommandOutcome(("npu-smi", "info"), status, stdout, stderr, 0.1)

    return make


@pytest.fixture
def host(tmp_path: Path) -> Callable[[dict[str, str]], HostFiles]:
    """Write files below a folder and return the host that has them."""

    def make(files: dict[str, str]) -> HostFiles:
        for path, text in files.items():
            target = tmp_path / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        return HostFiles(str(tmp_path))

    return make
