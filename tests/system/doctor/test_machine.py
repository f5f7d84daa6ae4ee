"""The whole doctor on a recorded machine: all checks pass; what hangs is killed; the gate of a start decides."""

import time
from typing import Any

import msgspec
import pytest

from ascendd.errors import ConfigInvalid, PreflightFailed
from ascendd.preflight.check import Verdict
from ascendd.preflight.context import CheckContext, CheckRequest
from ascendd.preflight.discover import find_checks
from ascendd.preflight.gate import GATE_CHECKS, run_gate
from ascendd.preflight.report import DoctorExit, exit_code
from ascendd.preflight.runner import run_checks

pytestmark = pytest.mark.system


def test_all_checks_pass_on_a_sound_910b_machine(machine: Any) -> None:
    """A machine where everything is in order passes every check, checksums included, and the C sample is compiled and run."""
    results = machine.diagnose(deep=True)
    # What runs torch_npu, which no folder can stand for; tests/npu runs these.
    deep = [results.pop(check) for check in ("npu-kernels", "npu-speed", "hccl-all-reduce")]

    others = {check_id: (r.verdict, r.summary) for check_id, r in results.items() if r.verdict is not Verdict.PASS}
    assert others == {
        "vendor-sample": (Verdict.SKIPPED, "the vendor's samples are not installed"),
        "shell-environment": (Verdict.SKIPPED, "only with --as-service INSTANCE"),
        "cluster-network": (Verdict.SKIPPED, "no instance named that serves over several hosts"),
        "cluster-names": (Verdict.SKIPPED, "no instance named that serves over several hosts"),
        "cluster-ports": (Verdict.SKIPPED, "no instance named that serves over several hosts"),
        "cluster-chips": (Verdict.SKIPPED, "no instance named that serves over several hosts"),
        "cluster-agreement": (Verdict.SKIPPED, "no instance named that serves over several hosts"),
    }
    assert "compiled, opened device 0" in results["acl-sample"].summary
    assert exit_code(list(results.values())) is DoctorExit.PASS
    assert {result.verdict for result in deep} <= {Verdict.FAIL, Verdict.ERROR}
    assert results["npu-presence"].evidence["counts"] == {"pci": 8, "nodes": 8, "npu_smi": 8, "acl": 8}
    assert "Ascend910B3" in results["acl-runtime"].summary
    assert "checksums of 4 files equal" in results["model-artefact"].summary


def test_a_device_that_hangs_is_an_error_that_names_the_call_and_the_seconds(machine: Any) -> None:
    """A call that never returns ends as ERROR within its limit, and nothing of it is left running."""
    machine.environ.update(FAKE_ACL_FAULT="aclrtSetDevice=hang")
    started = time.monotonic()

    result = machine.diagnose("acl-runtime", patience=0.1)["acl-runtime"]

    assert result.verdict is Verdict.ERROR
    assert result.summary == "could not check: ACL did not come back from aclrtSetDevice within 6 s"
    assert time.monotonic() - started < 30
    assert machine.left_running() == []


def test_a_check_that_hangs_itself_is_killed_with_the_tool_it_runs(machine: Any) -> None:
    """The check's own limit ends it and the npu-smi below it, which has a process group of its own."""
    machine.write(".answers/npu-smi/info.delay", "600")
    check = next(check for check in find_checks() if check.id == "driver-version")
    request = CheckRequest(device="npu", root=str(machine.root))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "timeout_s", 1.5)
        result = run_checks([check], request)[0]

    assert result.verdict is Verdict.ERROR
    assert result.summary == "could not check: no answer within 1.5 s, so the check was killed"
    assert machine.left_running() == []


def test_an_npu_smi_that_hangs_fails_presence_and_skips_what_hangs_on_it(machine: Any) -> None:
    """Where npu-smi does not answer, presence says so, and the checks that need it are skipped with that reason."""
    machine.write(".answers/npu-smi/info.delay", "600")

    results = machine.diagnose("npu-presence", "npu-health", "acl-runtime", patience=0.05)

    assert results["npu-presence"].verdict is Verdict.FAIL
    assert "did not answer within 1 s" in results["npu-presence"].summary
    assert results["npu-health"].verdict is results["acl-runtime"].verdict is Verdict.SKIPPED
    assert "npu-presence failed" in results["npu-health"].summary


def test_damaged_weights_of_the_right_size_are_only_seen_with_deep(machine: Any) -> None:
    """Sizes do not show a flipped byte; checksums do."""
    path = machine.model / "rank-0-of-2.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")

    quick, deep = (machine.diagnose("model-artefact", deep=deep)["model-artefact"] for deep in (False, True))

    assert quick.verdict is Verdict.PASS
    assert deep.verdict is Verdict.FAIL
    assert "SHA-256" in deep.summary


def test_an_artefact_packed_for_another_tensor_parallel_size_is_refused(machine: Any) -> None:
    """The size that the model was packed for must be the configured one."""
    result = machine.diagnose("model-artefact", tp_size=1)["model-artefact"]

    assert result.verdict is Verdict.FAIL
    assert "packed for tensor_parallel_size 2, the configuration asks for 1" in result.summary


def test_a_named_instance_is_judged_by_the_environment_of_its_unit(machine: Any) -> None:
    """With --instance the unit's Environment and EnvironmentFile count, and the shell's variables do not."""
    lines = "\n".join(
        f"{key}={value}" for key, value in machine.environ.items() if key not in ("PATH", "LD_LIBRARY_PATH")
    )
    machine.write("etc/ascendd/qwen2.env", lines)
    systemctl = machine.write(
        "usr/bin/systemctl",
        '#!/bin/sh\n[ "$2" = ascendd@qwen2.service ] || exit 1\n'
        "echo LoadState=loaded; echo ActiveState=inactive\n"
        f"echo 'Environment=\"LD_LIBRARY_PATH={machine.environ['LD_LIBRARY_PATH']}\" ASCEND_RT_VISIBLE_DEVICES=1,0'\n"
        "echo 'EnvironmentFiles=/etc/ascendd/qwen2.env (ignore_errors=no)'\n"
        "echo 'EnvironmentFiles=/etc/ascendd/gone.env (ignore_errors=yes)'\n",
    )
    systemctl.chmod(0o755)
    machine.environ = {"PATH": "/usr/bin:/bin"}

    result = machine.diagnose("service-environment", instance="qwen2")["service-environment"]

    assert result.verdict is Verdict.WARN
    assert result.summary == "ASCEND_RT_VISIBLE_DEVICES='1,0' is not a rising list of numbers without blanks"
    assert result.evidence["origin"] == "the environment of ascendd@qwen2.service"


def test_a_container_may_see_more_on_the_bus_than_it_was_given(machine: Any) -> None:
    """Inside a container the PCI bus is the host's, so only the other three counts must agree."""
    machine.write(".dockerenv", "")
    machine.write("sys/bus/pci/devices/0000:c7:00.0/vendor", "0x19e5\n")
    machine.write("sys/bus/pci/devices/0000:c7:00.0/device", "0xd802\n")

    result = machine.diagnose("npu-presence")["npu-presence"]

    assert result.verdict is Verdict.PASS
    assert result.evidence["counts"] == {"pci": 9, "nodes": 8, "npu_smi": 8, "acl": 8}


def test_the_gate_lets_a_sound_machine_start_and_names_what_stops_another(machine: Any) -> None:
    """The start's gate runs the fast checks and raises PreflightFailed with the failed check's words."""
    passed = run_gate(machine.config(), root=str(machine.root))
    machine.install_cann("6.0.1")
    with pytest.raises(PreflightFailed, match=r"cann-version: 6\.0\.1 .* leaks page-table memory") as caught:
        run_gate(machine.config(), root=str(machine.root))

    assert {result.verdict for result in passed} == {Verdict.PASS}
    assert len(passed) == len(caught.value.facts["results"]) == len(GATE_CHECKS)


def _leave_an_engine(machine: Any, node: str) -> None:
    """Have an engine of an earlier run whose supervisor is gone and that has `node` open."""
    machine.process(4711, "python3", holds=(node,))
    machine.write("proc/4711/cmdline", "python3\0-m\0ascendd\0_engine\0--control-fd\0005\0")


def test_b70_a_start_is_refused_while_an_orphan_has_its_chip(machine: Any) -> None:
    """B70: an engine that outlived its supervisor and has the instance's chip open is named with its pid, and ends the start."""
    _leave_an_engine(machine, "/dev/davinci0")

    with pytest.raises(PreflightFailed) as caught:
        run_gate(machine.config(), root=str(machine.root))

    said = "python3 (pid 4711) of an earlier run lives on without its supervisor and has /dev/davinci0 open"
    assert f"leftover-processes: {said}" in caught.value.message
    (failed,) = (result for result in caught.value.facts["results"] if result["verdict"] == "fail")
    assert failed["remedy"]["commands"] == ["kill 4711"]


def test_b70_an_orphan_beside_the_instance_is_told(machine: Any) -> None:
    """B70: one that has a chip of nobody here is a warning of the start, with its pid."""
    _leave_an_engine(machine, "/dev/davinci7")

    results = {result.check_id: result for result in run_gate(machine.config(), root=str(machine.root))}

    assert results["leftover-processes"].verdict is Verdict.WARN
    assert "python3 (pid 4711)" in results["leftover-processes"].summary


def test_a_context_beyond_the_models_is_a_fault_of_the_file(machine: Any) -> None:
    """A max_model_len that no host could serve is told as a wrong value, not as missing memory."""
    config = machine.config()
    config = msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, max_model_len=99_999_999))

    with pytest.raises(ConfigInvalid, match=r"model.max_model_len = 99999999: the model has \d+ positions") as caught:
        run_gate(config, root=str(machine.root))

    assert caught.value.exit_code == 78


def test_a_machine_with_a_driver_and_no_card_is_not_taken_for_a_cpu_host(machine: Any) -> None:
    """A card that fell off the bus leaves its driver behind, so auto still expects an NPU and fails on presence."""
    for path in (machine.root / "sys/bus/pci/devices").iterdir():
        (path / "device").write_text("0xa255\n")
    for path in (machine.root / "dev").iterdir():
        path.unlink()
    machine.replay("npu-smi", "info", "abn-dcmi-8005.txt", 187)
    machine.environ.update(FAKE_ACL_COUNT="0")

    result = machine.diagnose("npu-presence")["npu-presence"]

    assert CheckContext(CheckRequest(root=str(machine.root))).target.is_npu
    assert result.verdict is Verdict.FAIL
    assert "no NPU found (PCI 0, /dev 0, npu-smi unknown, ACL 0); a driver (24.1.rc3) is installed" in result.summary
