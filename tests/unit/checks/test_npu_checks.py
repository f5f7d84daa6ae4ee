"""Presence and health, judged over recorded outputs."""

from dataclasses import replace

import pytest
from ascendd.checks import npu_ecc, npu_health, npu_presence, npu_security, npu_sensors
from ascendd.checks.npu_presence import Presence

from ascendd.host.device_nodes import DeviceNodes
from ascendd.host.npu_smi_table import NpuChip
from ascendd.preflight.check import Verdict

PASS, WARN, FAIL = Verdict.PASS, Verdict.WARN, Verdict.FAIL
NODES = DeviceNodes(chips=(0, 1), missing_required=(), missing_expected=(), not_openable=())
SOUND = Presence(
    pci=2, nodes=NODES, npu_smi=2, acl=2, is_container=False, driver_version="24.1.0", user_group="HwHiAiUser"
)

PRESENCE = [
    (SOUND, PASS, "PCI 2, /dev 2, npu-smi 2, ACL 2"),
    (replace(SOUND, acl=None, notes=("ACL: no library",)), PASS, "ACL unknown"),
    (replace(SOUND, npu_smi=1), FAIL, "the counts disagree: PCI 2, /dev 2, npu-smi 1, ACL 2"),
    (replace(SOUND, pci=3), FAIL, "the counts disagree: PCI 3"),
    (replace(SOUND, pci=8, is_container=True), PASS, "PCI 8, /dev 2"),
    (replace(SOUND, pci=1, is_container=True), FAIL, "the counts disagree"),
    (replace(SOUND, pci=0), PASS, "PCI 0"),  # a virtual machine without a PCI bus
    (
        replace(SOUND, nodes=replace(NODES, not_openable=(("davinci0", "Permission denied"),))),
        FAIL,
        "/dev/davinci0 cannot be opened",
    ),
    (replace(SOUND, npu_smi=None, npu_smi_failure="INNER_ERR -8005", dcmi_code=-8005), FAIL, "npu-smi gives no answer"),
    (
        replace(SOUND, notes=("npu-smi: [WARNING]The driver package may not be completely installed",)),
        WARN,
        "not be completely installed",
    ),
    (replace(SOUND, nodes=replace(NODES, missing_expected=("hisi_hdc",))), WARN, "/dev/hisi_hdc not there"),
]


@pytest.mark.parametrize(("presence", "verdict", "words"), PRESENCE)
def test_presence(presence: Presence, verdict: Verdict, words: str) -> None:
    """The four counts must agree; in a container the bus may show more; an unknown count decides nothing."""
    result = npu_presence.judge(presence)

    assert (result.verdict, words in result.summary) == (verdict, True), result.summary
    assert result.evidence["counts"] == presence.counts
    assert (result.remedy is None) == (verdict is PASS)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "waits for a reboot"),
        ({"driver_version": None}, "version.info is missing: install the driver again"),
        ({"nodes": replace(NODES, chips=())}, "its module is not loaded"),
        ({"nodes": replace(NODES, not_openable=(("davinci0", "Permission denied"),))}, "group HwHiAiUser"),
        ({"pci": 0, "nodes": replace(NODES, chips=()), "acl": None}, "seated, powered"),
    ],
)
def test_minus_8005_is_a_tree_of_causes(change: dict[str, object], words: str) -> None:
    """The code says only `no working device`; the lowest broken layer gives the remedy."""
    presence = replace(SOUND, npu_smi=None, npu_smi_failure="INNER_ERR -8005", dcmi_code=-8005, **change)

    result = npu_presence.judge(presence)

    assert result.verdict is FAIL
    assert words in result.remedy.text


HEALTH = [
    ("info-24.1.rc3-910B3-2npu", PASS, "2 chip(s) OK"),
    ("info-25.2.1-910_93", PASS, "4 chip(s) OK"),
    ("info-25.2.0-310P3-duo", PASS, "4 chip(s) OK"),
    ("info-26.1.0-950", PASS, "2 chip(s) OK"),
    ("info-23.0.0-310B4", FAIL, "NPU 0 chip 0 is Alarm"),
    ("abn-health-warning", FAIL, "NPU 2 chip 0 (0000:C2:00.0) is Alarm; NPU 3 chip 0 (0000:02:00.0) is Critical"),
    ("abn-health-unknown", FAIL, "NPU 1 chip 0 (0000:01:00.0) is UNKNOWN"),
    ("abn-orphan", FAIL, "NPU ? chip 0 (0000:01:00.0) has a health that npu-smi itself does not know"),
    ("abn-card-missing", FAIL, "NPU 0 chip 0 (0000:C1:00.0) is Critical"),
]


@pytest.mark.parametrize(("name", "verdict", "words"), HEALTH)
def test_health_words_of_recorded_tables(chips, name: str, verdict: Verdict, words: str) -> None:
    """OK passes on every product; Alarm, Critical, UNKNOWN and a word nobody knows fail with the chip named."""
    result = npu_health.judge(chips(name), {})

    assert (result.verdict, words in result.summary) == (verdict, True), result.summary


def test_a_warning_alone_warns(chips) -> None:
    """The word Warning does not stop a start."""
    result = npu_health.judge(chips("abn-health-warning")[:2], {})

    assert (result.verdict, "is Warning" in result.summary) == (WARN, True)


def test_a_chip_of_somebody_else_only_warns(chips) -> None:
    """What is wrong with a chip that the instance does not use must not keep it from starting."""
    result = npu_health.judge(chips("abn-health-warning"), {}, in_use=frozenset({0}))

    assert result.verdict is WARN
    assert "is Critical (not used by this instance)" in result.summary


def chip(**change: object) -> NpuChip:
    """A sound chip with changes."""
    sound = NpuChip(
        npu_id=0, chip_id=0, phy_id=None, name="910B3", health="OK", bus_id="0000:C1:00.0", power_w=90.0, temperature_c=45,
        hbm_used_mb=3400, hbm_total_mb=65536, memory_used_mb=0, memory_total_mb=0, has_hbm_column=True,
    )  # fmt: skip
    return replace(sound, **change)


@pytest.mark.parametrize(
    ("change", "verdict", "words"),
    [
        ({"temperature_c": npu_sensors.TEMPERATURE_WARN_C - 1}, PASS, "at most 79 C"),
        ({"temperature_c": npu_sensors.TEMPERATURE_WARN_C}, WARN, "has 80 C"),
        ({"temperature_c": npu_sensors.TEMPERATURE_FAIL_C}, FAIL, "has 95 C"),
        ({"hbm_total_mb": 0, "hbm_used_mb": 0}, FAIL, "reports no HBM"),
        ({"hbm_used_mb": 70000}, FAIL, "70000 of 65536 MB"),
        ({"hbm_used_mb": None, "hbm_total_mb": None, "has_hbm_column": False}, PASS, "at most 45 C, 90 W together"),
        ({"power_w": 0.0, "temperature_c": 0}, FAIL, "shows 0 W and 0 C"),
        ({"power_w": 0.0, "temperature_c": 0, "health": "UNKNOWN"}, PASS, ""),
        ({"power_w": 900.0}, WARN, "takes 900 W"),
    ],
)
def test_sensors_out_of_range(change: dict[str, object], verdict: Verdict, words: str) -> None:
    """Temperature, power and memory have their limits; a chip without HBM or in alarm has none to judge."""
    result = npu_sensors.judge([chip(**change)])

    assert (result.verdict, words in result.summary) == (verdict, True), result.summary


def test_ids_and_nothing_else_is_security_mode() -> None:
    """A chip that shows its ids only refuses its firmware; the remedy is the vendor's package, not a reset."""
    bare = {
        "name": None,
        "power_w": None,
        "temperature_c": None,
        "hbm_used_mb": None,
        "hbm_total_mb": None,
        "memory_used_mb": None,
        "memory_total_mb": None,
    }

    for health in (None, "UNKNOWN"):
        result = npu_security.judge([chip(**bare, health=health)])
        assert result.verdict is FAIL
        assert "is in security mode" in result.summary
        assert "copied by hand" in result.remedy.text
    assert not npu_security.is_security_mode(chip(**{**bare, "temperature_c": 40}, health="UNKNOWN"))


@pytest.mark.parametrize(
    ("counters", "verdict", "words"),
    [
        ({"HBM Double Bit Error Count": 0, "HBM Single Bit Error Count": 9}, PASS, "no double-bit errors on 1 chip(s)"),
        ({"HBM Double Bit Error Count": 2}, FAIL, "HBM Double Bit Error Count 2"),
        (
            {"HBM Double Bit Error Count": 0, "HBM Double Bit Aggregate Total Err Cnt": 4},
            WARN,
            "Aggregate Total Err Cnt 4",
        ),
        ({"HBM Double Bit Isolated Pages Count": 63}, WARN, "Isolated Pages Count 63"),
        ({"HBM Double Bit Isolated Pages Count": 64}, FAIL, "Isolated Pages Count 64"),
    ],
)
def test_memory_errors(counters: dict[str, int], verdict: Verdict, words: str) -> None:
    """Double-bit errors of now fail, those of the past warn, spare rows that are used up fail; single bits are corrected."""
    result = npu_ecc.judge([chip()], {(0, 0): counters})

    assert (result.verdict, words in result.summary) == (verdict, True), result.summary


def test_the_codes_of_a_sick_chip_are_told(chips, fields) -> None:
    """Error code and text of npu-smi stand in the summary."""
    sick = chips("info-23.0.0-310B4")

    result = npu_health.judge(sick, {sick[0].label: fields("abn-t-health-c0")})

    assert "80E01801 node type=HBM" in result.summary


def test_a_health_word_that_nobody_knows_fails() -> None:
    """A word of a later release is not taken for OK."""
    result = npu_health.judge([chip(health="Sleepy")], {})

    assert (result.verdict, "is Sleepy" in result.summary) == (FAIL, True)


@pytest.mark.parametrize(
    ("missing", "verdict"),
    [
        ({}, Verdict.SKIPPED),
        ({"NPU 0": "npu-smi said: This device does not support querying ecc info."}, Verdict.SKIPPED),
        ({"NPU 0": 'npu-smi said: Failed to query "ecc" info.'}, Verdict.ERROR),
    ],
)
def test_counters_that_are_not_there(missing: dict[str, str], verdict: Verdict) -> None:
    """A product without counters is skipped; counters that cannot be read are no pass."""
    assert npu_ecc.judge([chip()], {}, missing=missing).verdict is verdict
