"""A server with NPUs under a real systemd: the gate of a start decides by the CANN that lies there."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from booted_machine import boot, environment_folders

pytestmark = [pytest.mark.system, pytest.mark.systemd, pytest.mark.timeout(400)]

ROOT = Path(__file__).resolve().parents[2]
REFUSED_BECAUSE = "CANN 7.0.0 is refused without hotfix H100"


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory, standin_folder: Path) -> dict[str, Any]:
    """Boot a machine, make it a server with eight stand-in NPUs, start the instance twice, and return what was seen."""
    driver = [sys.executable, ROOT / "tests/system/npu_host_driver.py", ROOT, Path(sys.prefix) / "bin", standin_folder]
    return boot(tmp_path_factory.mktemp("lab"), driver, (standin_folder, *environment_folders()))


def test_a_cann_without_its_hotfix_stops_the_start(facts: dict[str, Any]) -> None:
    """With CANN 7.0.0 `systemctl start` fails with 69, nothing listens, and systemd does not try again."""
    refused = facts["refused"]

    assert "failed because the control process exited with error code" in refused["said"]
    assert (refused["ActiveState"], refused["ExecMainStatus"], refused["NRestarts"]) == ("failed", "69", "0")
    assert refused["answered"] == 0


def test_systemctl_status_says_why_and_what_to_do(facts: dict[str, Any]) -> None:
    """The Status line has the code and the reason; the lines of the journal below it have the remedy and the page."""
    refused = facts["refused"]

    assert refused["StatusText"].startswith("failed: ASD-P01 cann-version: 7.0.0 at /usr/local/Ascend/")
    assert refused["StatusText"].endswith(REFUSED_BECAUSE)
    assert f'Status: "{refused["StatusText"]}"' in refused["status"]
    assert "remedy: Install a newer CANN toolkit" in refused["status"]
    assert "runbook: docs/runbooks/ASD-P01.md" in refused["status"]


def test_the_hotfix_lets_it_serve_on_the_npu(facts: dict[str, Any]) -> None:
    """With 7.0.0.H100 the same unit becomes active and answers through torch_npu on chip 0."""
    accepted = facts["accepted"]
    print(f"active {accepted['took_s']:.1f} s after systemctl start")

    assert accepted["seen"][-1][0] == "active"
    assert 'Status: "serving qwen2 on 127.0.0.1:8000"' in accepted["status"]
    assert json.loads(accepted["answer"])["usage"]["completion_tokens"] == 8
    assert (accepted["loaded"]["device"], accepted["visible"]) == ("npu", "0")
    assert accepted["libraries"] == ["libtorch_npu.so", "libstandin.so"]
    assert facts["stopped"] == {"ActiveState": "inactive", "Result": "success"}


def test_the_doctor_agrees_with_the_gate(facts: dict[str, Any]) -> None:
    """Before, it names the version as the one failure; after, all pass."""
    before = facts["refused"]["doctor"]
    after = facts["accepted"]["doctor"]

    assert {check for check, said in before.items() if said.startswith(("fail", "error"))} == {"cann-version"}
    assert before["cann-version"].endswith(REFUSED_BECAUSE)
    assert {said.partition(":")[0] for said in after.values()} == {"pass"}
    assert after["npu-presence"] == "pass: 8 chip(s) in every layer (PCI 8, /dev 8, npu-smi 8, ACL 8)"


def test_the_service_hears_what_the_kernel_says_of_its_chips(facts: dict[str, Any]) -> None:
    """Shut out of the kernel's ring buffer, it reads the journal: a fault of a later round degrades, and it serves on."""
    rounds = facts["rounds"]

    assert rounds["before"] == {"verdict": "0.0", "status": "serving qwen2 on 127.0.0.1:8000"}
    assert rounds["unit"] == ["ProtectKernelLogs=yes", "SupplementaryGroups=systemd-journal"]
    log = rounds["log"]
    assert (log["check"], log["verdict"], log["code"]) == ("kernel-log", "FAIL", "ASD-G13")
    assert "device(2) is not working" in log["summary"]
    assert rounds["answered"] == 200


def test_a_service_that_may_not_read_the_journal_says_so(facts: dict[str, Any]) -> None:
    """Without the group the same fault is not seen: the verdict is ERROR, never pass, and names the group."""
    shut = facts["shut"]

    assert (shut["log"]["check"], shut["log"]["verdict"], shut["log"]["code"]) == ("kernel-log", "ERROR", "ASD-P05")
    assert shut["log"]["summary"].startswith("could not check: the kernel log cannot be read: ")
    assert "SupplementaryGroups=systemd-journal" in shut["log"]["remedy"]
    assert shut["verdict"] == "3.0"


def test_the_pair_passes_by_the_sites_permit(facts: dict[str, Any]) -> None:
    """Neither driver nor CANN lists the other; the site's policy does, and its reason is shown."""
    permitted = facts["accepted"]["doctor"]["driver-cann"]
    without = facts["accepted"]["doctor_without_policy"]["driver-cann"]

    assert permitted.endswith("permitted by /etc/ascendd/policy.json: served here for a month, change 4711")
    assert without == "fail: neither driver 24.1.rc3 nor CANN 7.0.0.H100 lists the other as compatible"


def test_the_exporter_shows_the_chips_under_its_own_unit(facts: dict[str, Any]) -> None:
    """`systemctl start ascendd-exporter`: eight chips under both names, the instance, and the age; as its own user."""
    exporter = facts["exporter"]
    shown = exporter["serving"]
    print(exporter["exposure"])

    assert (exporter["verify"], exporter["said"], exporter["user"]) == ([], "", "ascendd")
    assert float(exporter["exposure"].split(": ")[1].split()[0]) < 4.0
    assert (shown["chips"], shown["machine"]) == (["ascendd_chips 8.0"], ["machine_npu_nums 8.0"])
    assert shown["listens"]
    assert len(shown["age"]) == 1
    assert {name: number for name, number in shown.items() if "chip_" in name and number != 8} == {}


def test_the_exporter_outlives_serving(facts: dict[str, Any]) -> None:
    """After the instance's stop the same process shows the chips on; its own stop is clean."""
    exporter = facts["exporter"]

    assert exporter["alone"] == {"pid": True, "ActiveState": "active", "NRestarts": "0", "chips": 8}
    assert exporter["stopped"] == {"ActiveState": "inactive", "Result": "success", "ExecMainStatus": "0"}


def test_the_exporter_steps_aside_for_an_npu_exporter(facts: dict[str, Any]) -> None:
    """While a process of that name runs, its names are left to it and ours stay; afterwards they are back."""
    exporter = facts["exporter"]

    assert exporter["aside"] == {"theirs": 0, "ours": 8}
    assert exporter["back"] == 8
