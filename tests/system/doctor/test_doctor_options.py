"""`ascendd doctor --fix`, `--bundle` and `--lang` as an operator types them, on a fake host."""

import io
import json
import os
import re
import signal
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from fake_machine import FakeMachine
from fault_cases import CASES
from host_fault_cases import HOST_CASES

from ascendd.preflight.context import CheckRequest
from ascendd.preflight.discover import find_checks, select
from ascendd.preflight.doctor import Doctor, DoctorOptions
from ascendd.preflight.language import Language

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[3]
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


@pytest.mark.parametrize(("uid", "is_told"), [(0, False), (1000, True)])
def test_fix_tells_a_user_what_it_needs(
    server: FakeMachine, uid: int, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is not root hears that the commands need it, before any of them is shown."""
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    request, out = CheckRequest(root=str(server.root)), io.StringIO()
    checks = select(find_checks(), SWAP[1].split(","), deep=False)

    Doctor(checks, request, DoctorOptions(Language.EN, fix=True), out).run()

    told = out.getvalue()
    assert ("These need root: run the doctor with sudo" in told) is is_told, told
    assert "swappiness: sysctl -w vm.swappiness=10" in told


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
    """Titles, verdicts, findings, remedies and the last line; --json stays English for machines."""
    CASES["double-bit errors of now"].damage(server)
    told = doctor(server, *SWAP, LC_ALL="zh_CN.UTF-8")
    chip = doctor(server, "--only", "npu-ecc,cann-version", "--lang", "zh")
    machine = doctor(server, *SWAP, "--json", LC_ALL="zh_CN.UTF-8")

    assert "交换分区" in told.stdout
    assert "而 vm.swappiness 是 60；要求不超过" in told.stdout
    assert re.search("NPU 内存错误 +失败 +NPU 5 chip 0 .*：HBM 双比特错误计数", chip.stdout), chip.stdout
    assert re.search("CANN 版本 +通过 +\\S+，位于 /usr/local/Ascend", chip.stdout), chip.stdout
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


def checks(server: FakeMachine, *args: str) -> subprocess.CompletedProcess[str]:
    """Run the part for a host without an environment, as from an unpacked bundle: no site-packages, no ascendd verb."""
    command = [sys.executable, "-S", "-m", "checks", "--host-root", str(server.root), *args]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=100)


def test_the_bundles_checks_have_the_options_of_the_verb(server: FakeMachine, tmp_path: Path) -> None:
    """JUnit, archive, language, fixes and explanations come without anything installed, and with the same exit codes."""
    junit, archive = tmp_path / "report.xml", tmp_path / "support.tar.gz"

    done = checks(server, *SWAP, "--lang", "zh", "--junit", str(junit), "--bundle", str(archive), "--fix")
    fixed = checks(server, *SWAP, "--fix", "--yes")
    explained = checks(server, "--explain", "swappiness", "--lang", "zh")

    assert done.returncode == 1, done.stderr
    assert "就绪，但有告警 (1 通过, 1 告警) [FAKE HOST]" in done.stdout
    assert "swappiness: sysctl -w vm.swappiness=10\n    有效期: " in done.stdout
    assert junit.read_text().count("<testcase ") == 2
    with tarfile.open(archive) as held:
        assert any(name.endswith("/report.json") for name in held.getnames())
    assert fixed.returncode == 0, fixed.stdout + fixed.stderr
    assert "Swap (swappiness): warn -> pass" in fixed.stdout
    assert explained.stdout.startswith("交换分区 (swappiness)\n\n内核不会把")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--watch", "0"], "--watch 0: write the seconds between two looks"),
        (["--yes"], "--yes says that --fix"),
        (["--lang", "de"], "--lang de: write zh or en"),
        (["--explain", "swap"], "--explain swap: no such check; known: "),
        (["--junit", "/absent/report.xml"], "--junit /absent/report.xml cannot be written: No such file"),
    ],
)
def test_wrong_options_of_the_bundles_checks_are_one_line(server: FakeMachine, args: list[str], words: str) -> None:
    """Wrong usage is 64, a file that cannot be written 71, as for every verb."""
    done = checks(server, *SWAP, *args)

    assert done.returncode == (71 if "--junit" in args else 64), done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_the_bundles_checks_watch_until_they_are_interrupted(server: FakeMachine) -> None:
    """--watch tells what changes, and Ctrl-C ends with the last verdict."""
    CASES["double-bit errors of now"].damage(server)
    command = [sys.executable, "-S", "-m", "checks", "--host-root", str(server.root), "--only", "npu-ecc"]
    with subprocess.Popen([*command, "--watch", "1"], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            heard = next(line for line in process.stdout if line.startswith("looking again every 1 s at: "))
            process.send_signal(signal.SIGINT)
            status = process.wait(90)
        finally:
            process.kill()

    assert heard == "looking again every 1 s at: npu-ecc\n"
    assert status == 2
