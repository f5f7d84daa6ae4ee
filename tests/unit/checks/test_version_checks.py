"""Driver, firmware and CANN versions, judged over version files."""

from dataclasses import replace

import pytest
from ascendd.checks import cann_version, driver_cann, driver_firmware, driver_version, firmware_version

from ascendd.host.files import HostFiles
from ascendd.host.policy import read_policy
from ascendd.host.version_files import CannFiles, DriverFiles, FirmwareFiles
from ascendd.preflight.check import Verdict

PASS, WARN, FAIL = Verdict.PASS, Verdict.WARN, Verdict.FAIL
DRIVER = DriverFiles(
    version="24.1.rc3", inner_version="V100R001C19SPC001B124", compatible_versions=("V100R001C13", "V100R001C19"),
    compatible_firmware="[7.0.0,7.5.99]", path="/usr/local/Ascend/driver/version.info", user_group="HwHiAiUser", is_complete=True,
)  # fmt: skip
FIRMWARE = FirmwareFiles(
    version="7.5.0.1.129", package_version="24.1.rc3", compatible_drivers="[24.0,24.0.],[24.1,24.1.]",
    path="/usr/local/Ascend/firmware/version.info", generation=None,
)  # fmt: skip
CANN = CannFiles("/usr/local/Ascend/cann", "8.0.RC3", "V100R001C19SPC001B124", ("V100R001C18",), "aarch64", ())
POLICY = read_policy(HostFiles("/no/such/folder"))

REFUSED = [
    ("6.0.1", "leaks page-table memory"), ("6.3.RC3.1", "dies of OOM after about 48 h"), ("7.0.0", "without hotfix H100"),
    ("7.0.0.H99", "without hotfix H100"), ("7.0.RC1", "older than 7.0.0.H100"), ("5.1.RC2", "older than 7.0.0.H100"),
]  # fmt: skip
TAKEN = [
    "7.0.0.H100", "7.0.0.H101", "7.0.1", "8.0.RC1", "8.0.RC2.alpha001", "8.0.0", "8.2.RC1", "8.5.0.alpha001", "8.5.0.2.220", "9.0.0",
    "9.1.0-beta.3", "8.1.T18",
]  # fmt: skip


@pytest.mark.parametrize(("version", "why"), REFUSED)
def test_cann_below_the_policy_is_refused_with_the_reason(version: str, why: str) -> None:
    """6.x leaks, 7.0.0 lacks its hotfix, what is older still is simply too old."""
    result = cann_version.judge([replace(CANN, version=version)], POLICY)

    assert (result.verdict, why in result.summary) == (FAIL, True), result.summary
    assert result.summary.startswith(version)


@pytest.mark.parametrize("version", TAKEN)
def test_cann_at_or_above_the_policy_passes(version: str) -> None:
    """Later releases pass in every form that the vendor writes."""
    assert cann_version.judge([replace(CANN, version=version)], POLICY).verdict is PASS


def test_a_hotfix_that_only_the_inner_version_shows_counts() -> None:
    """The hotfix may stand in innerversion; a build number is not taken for one."""
    hotfixed = replace(CANN, version="7.0.0", inner_version="V100R001C15SPC005H100")

    assert cann_version.judge([hotfixed], POLICY).verdict is PASS
    assert cann_version.judge([replace(hotfixed, inner_version="V100R001C15SPC005B220")], POLICY).verdict is FAIL


@pytest.mark.parametrize(("version", "words"), [("nightly", "no known form"), ("7.0.T5", "internal build")])
def test_cann_that_cannot_be_ranked_warns(version: str, words: str) -> None:
    """What cannot be compared is neither passed nor refused."""
    result = cann_version.judge([replace(CANN, version=version)], POLICY)

    assert (result.verdict, words in result.summary) == (WARN, True)


def test_the_toolkit_in_use_decides_not_another_on_disk() -> None:
    """The environment's toolkit comes first; the others are evidence."""
    old = replace(CANN, root="/opt/old", version="6.3.RC3")

    assert cann_version.judge([CANN, old], POLICY).verdict is PASS
    assert cann_version.judge([old, CANN], POLICY).verdict is FAIL


def test_no_cann_names_where_it_was_looked_for() -> None:
    """Nothing found is a failure that shows the places."""
    result = cann_version.judge([], POLICY, ["/usr/local/Ascend/cann"])

    assert (result.verdict, result.summary) == (FAIL, "no CANN toolkit found in /usr/local/Ascend/cann")


DRIVERS = [
    (DRIVER, "24.1.rc3", True, PASS, "24.1.rc3 is installed and runs"),
    (replace(DRIVER, version="24.1.RC3"), "24.1.rc3", True, PASS, "24.1.RC3"),
    (replace(DRIVER, version="24.1.0"), "24.1.0.b062", True, PASS, "24.1.0"),
    (DRIVER, "24.1.0", True, FAIL, "24.1.rc3 is installed but 24.1.0 runs: a reboot is pending"),
    (replace(DRIVER, version=None), None, True, FAIL, "no driver is installed"),
    (replace(DRIVER, version=None), "24.1.rc3", True, WARN, "is not there; running: 24.1.rc3"),
    (replace(DRIVER, is_complete=False), "24.1.rc3", True, FAIL, "installation was not completed"),
    (DRIVER, None, True, PASS, "what runs is not known: gone"),
    (DRIVER, None, False, FAIL, "the driver's tools are missing: it is installed half"),
    (DRIVER, "24.1.rc3", False, PASS, "24.1.rc3 is installed and runs"),
]  # fmt: skip


@pytest.mark.parametrize(("driver", "running", "has_tools", "verdict", "words"), DRIVERS)
def test_driver(driver: DriverFiles, running: str, has_tools: bool, verdict: Verdict, words: str) -> None:
    """Disk against what runs; a container has version.info and no tools."""
    result = driver_version.judge(driver, running, "gone", has_tools=has_tools)

    assert (result.verdict, words in result.summary) == (verdict, True), result.summary


PAIRS = [
    (DRIVER, CANN, PASS, "driver 24.1.rc3 with CANN 8.0.RC3"),
    (DRIVER, None, Verdict.SKIPPED, "no CANN toolkit to compare with"),
    (replace(DRIVER, version=None), CANN, Verdict.SKIPPED, "no driver to compare with"),
    (replace(DRIVER, compatible_versions=("V100R001C13",)), CANN, FAIL, "neither driver 24.1.rc3 nor CANN 8.0.RC3 lists the other"),
    (replace(DRIVER, compatible_versions=()), replace(CANN, compatible_versions=("V100R001C19",)), PASS, "with CANN 8.0.RC3"),
    (replace(DRIVER, version="25.0.1"), replace(CANN, version="9.1.0", inner_version=None, compatible_versions=()), FAIL, "published as not working"),
    (replace(DRIVER, version="25.5.1"), replace(CANN, version="9.0.0"), WARN, "failed in the field"),
    (replace(DRIVER, version="24.1.rc2"), replace(CANN, version="8.2.RC1", inner_version="V100R001C22B1", compatible_versions=("V100R001C01",)), PASS, "listed by the vendor"),
    (DRIVER, replace(CANN, version="9.9.9", inner_version=None, compatible_versions=()), WARN, "nothing is published"),
]  # fmt: skip


@pytest.mark.parametrize(("driver", "cann", "verdict", "words"), PAIRS)
def test_driver_with_cann(driver: DriverFiles, cann: CannFiles, verdict: Verdict, words: str) -> None:
    """The files' own lists come first, the release notes second; a denial blocks, an unknown pair only warns."""
    result = driver_cann.judge(driver, cann, POLICY)

    assert (result.verdict, words in result.summary) == (verdict, True), result.summary


def test_a_site_permits_a_pair_that_is_denied() -> None:
    """A permit of the site makes a pair pass, with its reason."""
    permit = {"driver": "25.0.X", "cann": "9.1.0", "reason": "tested here"}
    policy = replace(POLICY, permits=(permit,), site_file="/etc/ascendd/policy.json")

    result = driver_cann.judge(replace(DRIVER, version="25.0.1"), replace(CANN, version="9.1.0"), policy)

    assert (result.verdict, "permitted by /etc/ascendd/policy.json: tested here" in result.summary) == (PASS, True)


BOARD = {"Firmware Version": "7.5.0.1.129", "Compatibility": "OK"}
FIRMWARES = [
    (FIRMWARE, {0: BOARD}, ["A2"], False, PASS, "7.5.0.1.129 runs on every NPU"),
    (FIRMWARE, {}, ["A2"], False, PASS, "7.5.0.1.129"),
    (FIRMWARE, {0: BOARD, 1: {**BOARD, "Firmware Version": "7.1.0.3.220"}}, ["A2"], False, WARN, "but 7.1.0.3.220 runs: a reboot is pending"),
    (replace(FIRMWARE, version="6.4.12.1.241"), {}, ["A2"], False, FAIL, "older than 7.0.0"),
    (replace(FIRMWARE, version="8.9.0"), {}, ["950"], False, FAIL, "older than 9.0.0"),
    (replace(FIRMWARE, version="strange"), {}, ["A2"], False, WARN, "no known form"),
    (replace(FIRMWARE, version=None), {0: BOARD}, ["A2"], False, FAIL, "no firmware package is installed"),
    (replace(FIRMWARE, version=None), {0: BOARD}, ["A2"], True, PASS, "7.5.0.1.129 runs on every NPU"),
    (replace(FIRMWARE, version=None), {}, ["A2"], True, WARN, "neither files nor npu-smi"),
    (replace(FIRMWARE, generation="910"), {}, ["A2"], False, FAIL, "for 910, the chips are A2 (910b)"),
    (replace(FIRMWARE, generation="910b"), {}, ["910A"], False, FAIL, "for 910b, the chips are 910A (910)"),
    (replace(FIRMWARE, generation="910b"), {}, ["A2"], False, PASS, "7.5.0.1.129"),
    (replace(FIRMWARE, generation="310p"), {}, [], False, PASS, "7.5.0.1.129"),
]  # fmt: skip


@pytest.mark.parametrize(("firmware", "boards", "families", "is_container", "verdict", "words"), FIRMWARES)
def test_firmware(firmware, boards, families, is_container: bool, verdict: Verdict, words: str) -> None:
    """Package, generation, minimum, and what runs on each NPU."""
    result = firmware_version.judge(firmware, boards, families, POLICY, is_container)

    assert (result.verdict, words in result.summary) == (verdict, True), result.summary


@pytest.mark.parametrize(
    ("installed_on", "verdict"), [("2024-11-02", FAIL), ("2025-01-01", PASS), ("2026-01-01", PASS), (None, WARN)]
)
def test_the_day_of_the_firmware(installed_on: str | None, verdict: Verdict) -> None:
    """A site may ask for firmware of a day or later; without a log nobody knows, which warns."""
    policy = replace(POLICY, firmware_date_minimum="2025-01-01")

    assert firmware_version.judge(replace(FIRMWARE, installed_on=installed_on), {}, ["A2"], policy).verdict is verdict


TOGETHER = [
    (DRIVER, FIRMWARE, {0: BOARD}, PASS, "driver 24.1.rc3 with firmware 7.5.0.1.129"),
    (DRIVER, FIRMWARE, {1: {**BOARD, "Compatibility": "NOK"}}, FAIL, "NPU 1: firmware 7.5.0.1.129 and driver are incompatible"),
    (DRIVER, FIRMWARE, {1: {**BOARD, "Compatibility": "UNKNOWN"}}, PASS, "7.5.0.1.129"),
    (DRIVER, replace(FIRMWARE, version="7.6.0.1.1", compatible_drivers=""), {}, FAIL, "outside [7.0.0,7.5.99], which driver"),
    (DRIVER, replace(FIRMWARE, version="7.6.0.1.1"), {}, PASS, "7.6.0.1.1"),
    (replace(DRIVER, compatible_firmware=""), replace(FIRMWARE, version="7.6.0.1.1", compatible_drivers=""), {}, FAIL, "published for driver 24.1.rc3"),
    (replace(DRIVER, version="23.0.3", compatible_firmware=""), FIRMWARE, {}, FAIL, "does not list driver 23.0.3"),
    (replace(DRIVER, version="23.0.3", compatible_firmware=""), replace(FIRMWARE, compatible_drivers=""), {}, WARN, "nothing is known"),
    (replace(DRIVER, version=None), FIRMWARE, {}, Verdict.SKIPPED, "the version of the driver is not known"),
    (DRIVER, replace(FIRMWARE, version=None), {}, Verdict.SKIPPED, "the version of the firmware is not known"),
]  # fmt: skip


@pytest.mark.parametrize(("driver", "firmware", "boards", "verdict", "words"), TOGETHER)
def test_driver_with_firmware(driver, firmware, boards, verdict: Verdict, words: str) -> None:
    """One yes of either package is enough; where neither says a word, the published table does; npu-smi's NOK blocks."""
    result = driver_firmware.judge(driver, firmware, boards, POLICY)

    assert (result.verdict, words in result.summary) == (verdict, True), result.summary


def test_the_recorded_boards_are_judged(fields) -> None:
    """The fields come from npu-smi as they are."""
    sound, broken = fields("t-board-910B-24.1.0"), fields("abn-t-board-compat-nok")
    firmware = replace(FIRMWARE, version="7.5.0.2.220")

    assert firmware_version.judge(firmware, {0: sound}, ["A2"], POLICY).verdict is PASS
    assert driver_firmware.judge(DRIVER, firmware, {0: sound}, POLICY).verdict is PASS
    assert driver_firmware.judge(DRIVER, firmware, {1: broken}, POLICY).verdict is FAIL
