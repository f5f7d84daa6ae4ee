"""`ascendd doctor --host-root` as an operator types it, on a healthy fake host and on tools that misbehave."""

import json
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_machine import HCCN_TOOL, TOOLS, FakeMachine
from fault_cases import CASES
from host_fault_cases import HOST_CASES as CASES_OF_HOST

pytestmark = pytest.mark.system

# Far above what the suite takes, far below a tool that hangs for ever.
IN_TIME_S = 100
ONLY = ["--only", "npu-presence", "--only", "cann-version"]


@pytest.fixture
def server(tmp_path: Path, acl_library: Path) -> FakeMachine:
    """A healthy machine."""
    return FakeMachine(tmp_path / "host", acl_library)


def doctor(server: FakeMachine, *args: str) -> subprocess.CompletedProcess[str]:
    """Run the verb on the fake host."""
    command = [sys.executable, "-m", "ascendd", "doctor", "--host-root", str(server.root), *args]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd="/", timeout=IN_TIME_S)


def verdicts(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """The verdicts of a JSON report by check."""
    return {check["id"]: check["verdict"] for check in json.loads(done.stdout)["checks"]}


def test_a_healthy_host_passes_with_exit_0_and_says_fake_host(server: FakeMachine) -> None:
    """Eight 910B chips, every check in its own process, real child for ACL, the C sample compiled and run."""
    done = doctor(server)

    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout
    assert lines[0] == f"FAKE HOST {server.root}: 8 NPU function(s) on the PCI bus: Ascend 910B (A2)"
    assert lines[-1].endswith("[FAKE HOST]")
    assert lines[-1].startswith("Ready (")


def test_the_json_names_the_fake_host(server: FakeMachine) -> None:
    """A machine that reads the report can tell that it is of no real host."""
    done = doctor(server, "--json", "--only", "npu-presence")

    report = json.loads(done.stdout)
    assert (done.returncode, report["fake_host"], report["device"]) == (0, str(server.root), "npu")


def test_as_service_compares_the_shell_with_the_unit(server: FakeMachine) -> None:
    """A variable that only the shell has is told with where it belongs."""
    CASES_OF_HOST["a variable that only the shell has"].damage(server)
    file = server.root / "qwen2.yaml"
    file.write_text(f"model: {{path: {server.root}/models/qwen2}}\n")

    code = "from pathlib import Path; import ascendd.config.load as load, sys; load.INSTANCES_DIR = Path(sys.argv.pop(1)); from ascendd.cli.app import main; sys.exit(main())"
    command = [sys.executable, "-c", code, str(server.root), "doctor", "--host-root", str(server.root)]
    done = subprocess.run(
        [*command, "--as-service", "qwen2", "--only", "shell-environment"],
        check=False, capture_output=True, text=True, cwd="/", timeout=IN_TIME_S,
    )  # fmt: skip

    assert done.returncode == 1, done.stderr
    assert "set in this shell and not in the unit: HCCL_CONNECT_TIMEOUT" in done.stdout


def test_live_checks_see_what_breaks_while_an_instance_serves(server: FakeMachine) -> None:
    """What the daemon asks again finds double-bit errors that were not there at its start."""
    from ascendd.config.load import convert
    from ascendd.preflight.live import run_live

    config = convert({"model": {"path": "/models/qwen2"}, "engine": {"device": "npu"}, "parallel": {"devices": [5]}})
    CASES["double-bit errors of now"].damage(server)

    results = run_live(config, "qwen2", {}, str(server.root))

    assert [result.check_id for result in results if result.verdict.value == "fail"] == ["npu-ecc"]
    assert {"npu-health", "log-disk", "leftover-processes"} <= {result.check_id for result in results}


def test_a_folder_without_the_mark_is_wrong_usage(server: FakeMachine) -> None:
    """No folder becomes a host by a slip of the pen."""
    server.remove(".fake-host")

    done = doctor(server)

    assert (done.returncode, done.stdout) == (64, "")
    assert "is no fake host: it has no file .fake-host" in done.stderr


def test_the_bundles_own_command_takes_a_fake_host_too(server: FakeMachine) -> None:
    """`python3 -m checks` needs no installed package for it."""
    root = Path(__file__).resolve().parents[3]
    code = f"import sys, runpy; sys.path.insert(0, {str(root)!r}); sys.argv = ['checks', '--host-root', {str(server.root)!r}, *{ONLY!r}, '--json']"
    command = [sys.executable, "-I", "-S", "-c", code + "; runpy.run_module('checks', run_name='__main__')"]

    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd="/", timeout=IN_TIME_S)

    assert json.loads(done.stdout)["fake_host"] == str(server.root), done.stderr
    assert verdicts(done) == {"npu-presence": "pass", "cann-version": "pass"}


def test_an_npu_smi_that_exits_187_is_a_clear_failure(server: FakeMachine) -> None:
    """Its byte of -8005 is translated, presence fails, and what needs npu-smi is skipped."""
    server.answer("npu-smi", "info", "", 187)

    done = doctor(server, "--json")

    found = verdicts(done)
    assert done.returncode == 2
    assert [check for check, verdict in found.items() if verdict in ("fail", "error")] == ["npu-presence"]
    assert "INNER_ERR -8005" in done.stdout


def test_an_npu_smi_that_prints_ten_megabytes_ends_in_time(server: FakeMachine) -> None:
    """It is killed at 4 MiB, and that is told as what could not be checked."""
    server.script("usr/local/bin/npu-smi", "head -c 10485760 /dev/zero | tr '\\0' 'x'")
    started = time.monotonic()

    done = doctor(server, "--json")

    assert time.monotonic() - started < IN_TIME_S
    assert done.returncode == 3
    assert [check for check, verdict in verdicts(done).items() if verdict in ("fail", "error")] == ["npu-presence"]
    assert "printed more than 4 MiB and was killed" in done.stdout


@pytest.mark.slow
def test_an_npu_smi_that_hangs_ends_in_time(server: FakeMachine) -> None:
    """Each call is killed after its limit, presence says so, and the checks that need it are not even tried."""
    server.delay("npu-smi", 600)

    done = doctor(server, "--json")

    assert done.returncode == 2
    assert [check for check, verdict in verdicts(done).items() if verdict in ("fail", "error")] == ["npu-presence"]
    assert "did not answer within 20 s and was killed" in done.stdout


def test_watch_tells_what_changes_until_it_is_interrupted(server: FakeMachine) -> None:
    """A chip that falls ill while --watch looks is one line with the remedy, and Ctrl-C ends with that verdict."""
    command = [
        sys.executable,
        "-m",
        "ascendd",
        "doctor",
        "--host-root",
        str(server.root),
        "--only",
        "npu-ecc,npu-presence",
    ]
    process = subprocess.Popen([*command, "--watch", "1"], stdout=subprocess.PIPE, text=True, cwd="/")
    assert process.stdout is not None
    lines = []
    try:
        for line in process.stdout:
            lines.append(line.strip())
            if line.startswith("looking again every 1 s at: npu-ecc"):
                CASES["double-bit errors of now"].damage(server)
            if "npu-ecc): pass ->" in line:
                break
        process.send_signal(signal.SIGINT)
        status = process.wait(IN_TIME_S)
    finally:
        process.kill()
        process.stdout.close()

    assert " (npu-ecc): pass -> fail: " in lines[-1], lines
    assert "ASD-" in lines[-1]
    assert status == 2


def test_junit_is_written_and_skipped_checks_are_not_there(server: FakeMachine, tmp_path: Path) -> None:
    """--junit writes the cases of the run; --skip leaves a check out."""
    target = tmp_path / "report.xml"

    done = doctor(server, "--only", "npu-presence,cann-version", "--skip", "cann-version", "--junit", str(target))

    assert done.returncode == 0, done.stderr
    assert target.read_text().count("<testcase ") == 1
    assert 'name="npu-presence: ' in target.read_text()


def test_explain_runs_nothing_and_names_unknown_checks() -> None:
    """--explain tells what a check does; a name that no check has is wrong usage with the known ones."""
    command = [sys.executable, "-m", "ascendd", "doctor", "--explain"]
    told = subprocess.run([*command, "npu-ecc"], check=False, capture_output=True, text=True)
    wrong = subprocess.run([*command, "npu-eck"], check=False, capture_output=True, text=True)

    assert told.returncode == 0
    assert "(npu-ecc)" in told.stdout.splitlines()[0]
    assert wrong.returncode == 64
    assert "--explain npu-eck: no such check; known: " in wrong.stderr


def test_the_suite_takes_less_than_five_seconds_of_two_cores(server: FakeMachine) -> None:
    """On eight chips whose tools answer after 200 ms; of CPU time, since other work on this machine is none of ours."""
    for tool in (*TOOLS, Path(HCCN_TOOL).name):
        server.delay(tool, 0.2)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)

    done = doctor(server, "--json")

    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stdout
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 5
    assert len(verdicts(done)) > 40
