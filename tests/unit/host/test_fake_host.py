"""A fake host: only a marked folder counts as one, and nothing of the machine around it shows through."""

import json
from pathlib import Path

import pytest

from ascendd.errors import ProbeUnavailable, UsageError
from ascendd.host.fake_host import require_fake_host
from ascendd.host.files import HostFiles
from ascendd.host.tool import find_tool, host_runner
from ascendd.preflight.context import CheckContext, CheckRequest
from ascendd.preflight.report import to_json


@pytest.fixture
def fake(tmp_path: Path) -> HostFiles:
    """A fake host with one tool and what its mark can say."""
    said = {
        "environ": {"A": "1"}, "denied": {"/dev/davinci0": "Permission denied"},
        "disks": {"/": [100, 50], "/var/log": [10, 1]}, "facts": {"now": 7},
    }  # fmt: skip
    (tmp_path / ".fake-host").write_text(json.dumps(said))
    tool = tmp_path / "usr/bin/npu-smi"
    tool.parent.mkdir(parents=True)
    tool.write_text('#!/bin/sh\necho "$FAKE_HOST $*"\n')
    tool.chmod(0o755)
    (tmp_path / "dev").mkdir()
    for node in ("davinci0", "davinci1"):
        (tmp_path / "dev" / node).touch()
    return HostFiles(str(tmp_path))


def test_a_folder_without_the_mark_is_refused(tmp_path: Path) -> None:
    """No folder can be taken for a host by mistake; the message says what is missing."""
    with pytest.raises(UsageError, match=r"is no fake host: it has no file \.fake-host"):
        CheckContext(CheckRequest(root=str(tmp_path)))


@pytest.mark.parametrize("text", ["[]", "no JSON", '{"disks": {"/": 5}}'])
def test_a_mark_that_cannot_be_read_is_refused(tmp_path: Path, text: str) -> None:
    """A half-written mark is wrong usage, not an empty host."""
    (tmp_path / ".fake-host").write_text(text)

    with pytest.raises(UsageError, match="is not the JSON object"):
        require_fake_host(str(tmp_path))


def test_the_real_host_needs_no_mark() -> None:
    """`/` is the machine itself."""
    assert require_fake_host("/") == "/"
    assert HostFiles("/").fake is None
    assert HostFiles("/").fact("now") is None


def test_the_mark_says_what_files_cannot(fake: HostFiles) -> None:
    """Refused nodes, file systems by mount point, and named facts come from the mark."""
    assert fake.open_read_write("/dev/davinci0") == "Permission denied"
    assert fake.open_read_write("/dev/davinci1") is None
    assert fake.disk_space("/var/log/ascendd") == (10, 1)
    assert fake.disk_space("/var/logs") == (100, 50)
    assert fake.fact("now") == 7


def test_only_tools_of_the_fake_host_are_run(fake: HostFiles) -> None:
    """`cat` of the machine around it is not there, by name or by path; its own npu-smi runs and knows its root."""
    run = host_runner(fake)

    assert find_tool("cat", fake, {"PATH": "/bin"}) is None
    for name in ("cat", "/bin/cat"):
        with pytest.raises(ProbeUnavailable, match="cat is not on this host"):
            run([name], 5.0, {})
    assert run(["npu-smi", "info"], 5.0, {}).stdout == f"{fake.root} info\n"


def test_every_report_says_fake_host(fake: HostFiles) -> None:
    """The reason begins with it, and the JSON names the folder; the environment is the fake host's own."""
    context = CheckContext(CheckRequest(root=fake.root, environ={"SECRET": "x"}))

    report = to_json([], context.target, {})

    assert report["device_reason"].startswith(f"FAKE HOST {fake.root}: ")
    assert report["fake_host"] == fake.root
    assert context.environ == {"A": "1"}
