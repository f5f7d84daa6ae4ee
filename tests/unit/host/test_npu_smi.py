"""npu-smi is found, its failures are told apart, and its key-value outputs are read."""

import pytest

from ascendd.errors import ProbeUnavailable
from ascendd.host.npu_smi import NpuSmi, find_npu_smi, parse_fields, raise_failure

FAILURES = [
    ("abn-dcmi-8005.txt", 187, -8005, "INNER_ERR"),
    ("abn-dcmi-8005-old", 187, -8005, "INNER_ERR"),
    ("abn-dcmi-8008", 184, -8008, "DEVICE_NOT_EXIST"),
    ("abn-dcmi-8020", 172, -8020, "RESOURCE_OCCUPIED"),
    ("abn-get-board", 211, -9005, "board type"),
]


@pytest.mark.parametrize(("name", "status", "code", "words"), FAILURES)
def test_a_return_code_in_the_text_is_named(recording, outcome, name: str, status: int, code: int, words: str) -> None:
    """The code that the text carries, behind any noise line, decides what failed and what to do."""
    with pytest.raises(ProbeUnavailable, match=words) as caught:
        raise_failure(outcome(recording(name), status))

    assert caught.value.facts["dcmi_code"] == code
    assert "DrvMng" not in caught.value.message


def test_a_return_code_is_known_from_the_exit_status_alone(outcome) -> None:
    """The shell sees the lowest byte of a negative code: 187 is -8005."""
    with pytest.raises(ProbeUnavailable, match="INNER_ERR -8005"):
        raise_failure(outcome("", 187))


@pytest.mark.parametrize("name", ["abn-ld-libc_sec-rc127.txt", "abn-ld-libdrvdsmi-rc127.txt"])
def test_a_loader_error_names_the_library(recording, outcome, name: str) -> None:
    """A tool that cannot start says which library it lacks, and the remedy is the library path."""
    with pytest.raises(ProbeUnavailable, match=r"npu-smi cannot start: lib\w+\.so") as caught:
        raise_failure(outcome("", 127, stderr=recording(name)))

    assert "LD_LIBRARY_PATH" in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "status"),
    [("abn-no-card", 0), ("abn-t-not-supported", 0), ("abn-t-query-failed", 1), ("abn-t-query-failed", 0)],
)
def test_a_refusal_counts_whatever_its_status(recording, outcome, name: str, status: int) -> None:
    """Failures are printed to standard output, sometimes with status 0."""
    with pytest.raises(ProbeUnavailable, match="npu-smi said"):
        raise_failure(outcome(recording(name), status))


@pytest.mark.parametrize(
    "name", ["info-24.1.1-910B4", "abn-driver-incomplete", "t-board-910B", "t-ecc-910A", "t-health"]
)
def test_an_answer_is_no_failure(recording, outcome, name: str) -> None:
    """Tables and fields pass, warnings at their end included."""
    raise_failure(outcome(recording(name)))


def test_a_folder_in_place_of_the_tool_is_named(host) -> None:
    """A container mount with a missing source leaves a folder; the message says so instead of `not found`."""
    files = host({"/usr/local/sbin/npu-smi/keep": ""})

    with pytest.raises(ProbeUnavailable, match="/usr/local/sbin/npu-smi is a folder, not the tool"):
        find_npu_smi(files, {"PATH": "/usr/bin"})


def test_an_executable_on_path_comes_first(host, tmp_path) -> None:
    """PATH is searched before the usual places; a file that cannot be executed is passed over."""
    files = host({"/opt/a/npu-smi": "", "/opt/b/npu-smi": "", "/usr/local/bin/npu-smi": ""})
    for path in ("opt/b/npu-smi", "usr/local/bin/npu-smi"):
        (tmp_path / path).chmod(0o755)

    assert find_npu_smi(files, {"PATH": "/opt/a:/opt/b"}) == f"{tmp_path}/opt/b/npu-smi"
    assert find_npu_smi(files, {}) == f"{tmp_path}/usr/local/bin/npu-smi"


def test_fields_are_read_with_blanks_in_key_and_value(recording) -> None:
    """Keys hold blanks, values hold colons and blanks; the first of equal keys wins."""
    board = parse_fields(recording("t-board-910B-24.1.0"))
    health = parse_fields(recording("t-health-910B3"))

    assert (board["Firmware Version"], board["Compatibility"], board["PCIe Bus Info"]) == (
        "7.5.0.2.220",
        "OK",
        "0000:C1:00.0",
    )
    assert (health["Health"], health["Chip Name"]) == ("OK", "MCU")


def test_a_blank_key_continues_the_value_above() -> None:
    """Further error texts come on lines whose key is blank."""
    text = "\tError Code                     : 80E01801 80CB8008\n\tError Information              : first\n\t                               : second\n"

    assert parse_fields(text)["Error Information"] == "first; second"


def test_error_counters_are_read_by_chip(recording, outcome) -> None:
    """Each chip's counters end with its id; two blocks stay two chips."""
    text = recording("abn-t-ecc-hbm-double-bit")
    second = recording("t-ecc-910A-clean").replace(
        "Chip ID                                  : 0", "Chip ID                                  : 1"
    )
    tool = NpuSmi("npu-smi", lambda argv, timeout_s, environ: outcome(text + second), {})

    counters = tool.ecc(5)

    assert sorted(counters) == [0, 1]
    assert counters[0]["HBM Double Bit Error Count"] == 2
    assert set(counters[1].values()) == {0}
