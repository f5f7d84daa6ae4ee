"""Every recorded layout of `npu-smi info` is read by its header words."""

import pytest

from ascendd.errors import ProbeParseError
from ascendd.host.npu_smi_table import parse_info

LAYOUTS = [
    # recording, driver version, chips, processes, then of the first chip: npu, chip, phy id, name, HBM used / total
    ("info-22.0.4-310P3", "22.0.4", 2, 1, (32, 0, 0, "310P3", None, None)),
    ("info-23.0.0-310B4", "23.0.0", 1, 0, (0, 0, 0, "310B4", None, None)),
    ("info-23.0.3-910A", "23.0.3", 2, 1, (3, 0, None, "910A", 29811, 32768)),
    ("info-23.0.rc2-910A", "23.0.rc2", 8, 0, (0, 0, None, "910A", 0, 32768)),
    ("info-24.1.0-910B2", "24.1.0", 4, 5, (0, 0, None, "910B2", 61240, 65536)),
    ("info-24.1.1-910B4", "24.1.1", 2, 1, (0, 0, None, "910B4", 26840, 32768)),
    ("info-24.1.rc3-910B3-2npu", "24.1.rc3", 2, 0, (0, 0, None, "910B3", 3411, 65536)),
    ("info-24.1.rc3-910B3-8procs", "24.1.rc3", 1, 8, (1, 0, None, "910B3", 64911, 65536)),
    ("info-24.1.rc3.b110-910_93", "24.1.rc3.b110", 16, 0, (0, 0, 0, "Ascend910", 3130, 65536)),
    ("info-25.2.0-310P3-duo", "25.2.0", 4, 2, (2, 0, 0, "310P3", None, None)),
    ("info-25.2.0-910B2C", "25.2.0", 16, 0, (0, 0, None, "910B2C", 3402, 65536)),
    ("info-25.2.1-910_93", "25.2.1", 4, 2, (0, 0, 0, "Ascend910", 52110, 65536)),
    ("info-26.0.rc1-910B2", "26.0.rc1", 2, 1, (0, 0, None, "910B2", 38705, 65536)),
    ("info-26.0.rc1-910_93", "26.0.rc1", 4, 2, (0, 0, 0, "Ascend910", 52110, 65536)),
    ("info-26.1.0-950", "26.1.0", 2, 0, (0, 0, None, "Ascend950PR", 4441, 86016)),
]


@pytest.mark.parametrize(("prefix", "driver", "num_chips", "num_processes", "first"), LAYOUTS)
def test_a_layout_is_read_whole(recording, prefix, driver, num_chips, num_processes, first) -> None:
    """Chips, processes, ids, names and memory come out of each recorded layout."""
    report = parse_info(recording(prefix))

    chip = report.chips[0]
    assert (report.driver_version, len(report.chips), len(report.processes)) == (driver, num_chips, num_processes)
    assert (chip.npu_id, chip.chip_id, chip.phy_id, chip.name, chip.hbm_used_mb, chip.hbm_total_mb) == first
    assert all(chip.health in ("OK", "Alarm") for chip in report.chips)
    assert report.complete
    assert report.notes == ()


def test_the_dies_of_an_a3_are_chips_of_one_npu(recording) -> None:
    """Dies are told apart by a full line of dashes; the second has no power reading."""
    dies = parse_info(recording("info-25.2.1-910_93")).chips

    assert [(die.npu_id, die.chip_id, die.phy_id) for die in dies] == [(0, 0, 0), (0, 1, 1), (1, 0, 2), (1, 1, 3)]
    assert [die.power_w for die in dies] == [161.9, None, 163.6, None]
    assert dies[3].bus_id == "0000:A2:00.0"


def test_the_container_pid_column_of_release_26_is_read(recording) -> None:
    """Release 26 adds a fifth column; a process of another namespace has no name."""
    (process,) = parse_info(recording("info-26.0.rc1-910B2")).processes

    assert (process.pid, process.container_pid, process.name, process.memory_mb) == (1504912, 412377, "", 35301)


def test_an_orphan_second_line_is_a_chip_without_health(recording) -> None:
    """A health word that npu-smi does not know makes it drop the first line; the chip still counts."""
    sound, orphan = parse_info(recording("abn-orphan")).chips

    assert sound.health == "OK"
    assert (orphan.npu_id, orphan.health, orphan.bus_id) == (None, None, "0000:01:00.0")
    assert orphan.label == "NPU ? chip 0 (0000:01:00.0)"


def test_fields_that_are_not_available_are_none(recording) -> None:
    """`NA` is no number, in single and in used / total cells."""
    chip = parse_info(recording("abn-health-unknown-NA")).chips[1]

    assert (chip.health, chip.power_w, chip.temperature_c, chip.hbm_used_mb, chip.hbm_total_mb) == (
        "UNKNOWN",
        None,
        None,
        None,
        None,
    )


def test_a_line_after_the_table_is_a_note(recording) -> None:
    """The warning of a driver that was installed half is kept."""
    report = parse_info(recording("abn-driver-incomplete"))

    assert len(report.chips) == 1
    assert report.notes[0].startswith("[WARNING]The driver package may not be completely installed")


def test_a_table_cut_short_says_so(recording) -> None:
    """A tool killed in the middle of a line leaves an incomplete report."""
    report = parse_info(recording("abn-truncated"))

    assert not report.complete
    assert report.chips[0].health == "OK"


@pytest.mark.parametrize("text", ["", "dcmi module initialize failed. ret is -8005\n", "Usage: npu-smi info\n"])
def test_no_table_is_a_parse_error(text: str) -> None:
    """Anything without title and header is refused, and the message shows its first line."""
    with pytest.raises(ProbeParseError, match="no table"):
        parse_info(text)
