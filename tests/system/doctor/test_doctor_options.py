"""`ascendd doctor --fix`, `--bundle` and `--lang` as an operator types them, on a fake host."""

import json
import os
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from fake_machine import FakeMachine
from fault_cases import CASES
from host_fault_cases import HOST_CASES

pytestmark = pytest.mark.system

SWAP = ("--only", "swappiness,clock")


@pytest.fixture
def server(tmp_path: Path, acl_library: Path) -> FakeMachine:
    """A machine that swaps eagerly, with a sysctl that works."""
    machine = FakeMachine(tmp_path / "host", acl_library)
    HOST_CASES["eager swapping"].damage(machine)
    machine.script("usr/sbin/sysctl", 'echo "${2#*=}" > "$FAKE_HOST/proc/sys/vm/swappiness"')
    return machine


def doctor(server: FakeMachine, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the verb on the fake host."""
    command = [sys.executable, "-m", "ascendd", "doctor", "--host-root", str(server.root), *args]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, cwd="/", timeout=100, env={**os.environ, **environ}
    )


def test_fix_shows_and_changes_nothing(server: FakeMachine) -> None:
    """A dry run by default: command, how long it holds and the way back, and the file is as it was."""
    done = doctor(server, *SWAP, "--fix")

    assert done.returncode == 1, done.stderr
    assert "none of which was run" in done.stdout
    assert "swappiness: sysctl -w vm.swappiness=10" in done.stdout
    assert "undo: sysctl -w vm.swappiness=60" in done.stdout
    assert (server.root / "proc/sys/vm/swappiness").read_text() == "60\n"


def test_fix_with_yes_runs_it_and_looks_again(server: FakeMachine) -> None:
    """The setting is changed, the check passes now, and the exit status is that of what is left."""
    done = doctor(server, *SWAP, "--fix", "--yes")

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.index("swappiness: sysctl -w") < done.stdout.index("    done")
    assert "Swap (swappiness): warn -> pass" in done.stdout
    assert (server.root / "proc/sys/vm/swappiness").read_text() == "10\n"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--yes"], "--yes says that --fix"),
        (["--fix", "--json"], "--fix and --json exclude each other"),
        (["--lang", "de"], "--lang de: write zh or en"),
    ],
)
def test_wrong_options_are_wrong_usage(server: FakeMachine, args: list[str], words: str) -> None:
    """One line and 64."""
    done = doctor(server, *SWAP, *args)

    assert (done.returncode, done.stdout) == (64, "")
    assert words in done.stderr


def test_a_chinese_locale_gets_a_chinese_report(server: FakeMachine) -> None:
    """Titles, verdicts, remedies and the last line; --json stays English for machines."""
    told = doctor(server, *SWAP, LC_ALL="zh_CN.UTF-8")
    machine = doctor(server, *SWAP, "--json", LC_ALL="zh_CN.UTF-8")

    assert "交换分区" in told.stdout
    assert "请设置：sysctl -w vm.swappiness=10" in told.stdout
    assert told.stdout.splitlines()[-1] == "就绪，但有告警 (1 通过, 1 告警) [FAKE HOST]"
    assert json.loads(machine.stdout)["checks"][0]["title"] == "Swap"


def test_the_support_archive_holds_the_report_and_no_secret(server: FakeMachine, tmp_path: Path) -> None:
    """Report, version files and tools' answers are in it, masked, for its owner only; the last MiB of a long log."""
    CASES["double-bit errors of now"].damage(server)
    server.setenv(HF_TOKEN="s3cret-value", PLAIN_VALUE="as it is")
    server.write("etc/ascendd/instances/qwen2.yaml", "model: {path: /m}\n# api_key: s3cret-value\n")
    server.write("var/log/ascendd/qwen2.log", "x" * (3 << 20) + "\npassword=s3cret-value\nthe last line\n")
    target = tmp_path / "support.tar.gz"

    done = doctor(server, "--only", "npu-ecc", "--bundle", str(target), "--json")
    again = doctor(server, "--only", "npu-ecc", "--bundle", str(target))

    assert done.returncode == 2, done.stderr
    assert json.loads(done.stdout)["exit_code"] == 2
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with tarfile.open(target) as archive:
        held = {
            member.name.partition("/")[2]: (file.read() if (file := archive.extractfile(member)) else b"").decode()
            for member in archive
        }
    assert "s3cret-value" not in "".join(held.values())
    assert "PLAIN_VALUE=as it is" in held["environment.txt"]
    assert json.loads(held["report.json"])["checks"][0]["id"] == "npu-ecc"
    assert "Version=24.1.rc3" in held["files/usr/local/Ascend/driver/version.info"]
    assert "910B3" in held["commands/npu-smi_info.txt"]
    assert held["files/var/log/ascendd/qwen2.log"].endswith("the last line\n")
    assert len(held["files/var/log/ascendd/qwen2.log"]) <= 1 << 20
    assert "/var/log/ascendd/qwen2.log: the last 1 MiB" in held["MANIFEST.txt"]
    assert sum(map(len, held.values())) < 21 << 20
    assert again.returncode == 64
    assert "exists already" in again.stderr
