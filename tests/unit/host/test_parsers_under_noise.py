"""
Damaged outputs: cut off, reordered, with lines of other programs between them. No parser breaks on any, and what is not
whole is never taken for a healthy machine.
"""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from ascendd.checks import hbm_free, npu_health, npu_sensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ascendd.errors import ProbeError
from ascendd.host import hccn_tool, npu_smi_lists
from ascendd.host.boot import read_installations
from ascendd.host.cann_version import in_ranges, parse_ranges, parse_version
from ascendd.host.command import CommandOutcome
from ascendd.host.cpu_list import format_cpus, parse_cpus
from ascendd.host.kernel_log import find_faults
from ascendd.host.npu_smi import parse_fields, raise_failure
from ascendd.host.npu_smi_table import parse_info
from ascendd.host.npu_topology import parse_topology
from ascendd.host.pci import parse_lspci
from ascendd.preflight.check import Verdict
from ascendd.preflight.chips import whole

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "npu-smi"
TEXTS = {path.name: path.read_text() for path in sorted(FOLDER.glob("*.txt"))}
HEALTHY = [name for name in TEXTS if name.startswith("info-") and "alarm" not in name]
NOISE = [
    "DrvMngGetConsoleLogLevel failed. (ret=4)", "", "|", "+", "| |", "+===+", "[WARNING] something", "\t:", " : ", "\x00",
    "npu-smi: warning: locale", "| 0 |", "| NPU | Process id |", "link status: maybe", "NPU0 X", "已完成", "| NA / NA |",
]  # fmt: skip


def refused(text: str, status: int = 0) -> None:
    """raise_failure over an output."""
    raise_failure(CommandOutcome(("npu-smi",), status, text, text, 0.0))


PARSERS: list[Callable[[str], object]] = [
    parse_info, parse_fields, parse_topology, parse_lspci, refused, npu_smi_lists.parse_cards, npu_smi_lists.parse_mapping,
    npu_smi_lists.parse_readings, npu_smi_lists.parse_process_memory, npu_smi_lists.parse_watch, npu_smi_lists.parse_reset,
    npu_smi_lists.count_reset_prompts, hccn_tool.parse_link, hccn_tool.parse_net_health, hccn_tool.parse_tls,
    hccn_tool.parse_address, hccn_tool.parse_counters, hccn_tool.parse_link_changes, hccn_tool.parse_fec,
    hccn_tool.parse_optical, find_faults, parse_cpus, parse_version, parse_ranges,
]  # fmt: skip


def answered(parse: Callable[[str], object], text: str) -> bool:
    """Whether the parser gave facts or a ProbeError with a message; anything else that it raises fails the test."""
    try:
        parse(text)
    except ProbeError as error:
        return bool(error.message)
    return True


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """A recorded output that was cut, shuffled, doubled, or has foreign lines and characters in it."""
    lines = TEXTS[draw(st.sampled_from(sorted(TEXTS)))].splitlines()
    random_ = draw(st.randoms(use_true_random=False))
    for damage in draw(st.lists(st.sampled_from(["cut", "shuffle", "noise", "double", "join", "letters"]), max_size=4)):
        lines = DAMAGES[damage](lines, random_)
    text = "\n".join(lines)
    return text[: random_.randrange(len(text) + 1)] if draw(st.booleans()) else text


def foreign(lines: list[str], random_: random.Random) -> list[str]:
    """Lines of other programs at random places."""
    lines = list(lines)
    for _ in range(random_.randrange(1, 6)):
        lines.insert(random_.randrange(len(lines) + 1), random_.choice(NOISE))
    return lines


def letters(lines: list[str], random_: random.Random) -> list[str]:
    """Characters that were lost or changed."""
    text = list("\n".join(lines))
    for _ in range(random_.randrange(1, 9) if text else 0):
        text[random_.randrange(len(text))] = random_.choice(["", "|", "\x1b", "0", "-", "/", " ", "é", "\n"])
    return "".join(text).split("\n")


DAMAGES: dict[str, Callable[[list[str], random.Random], list[str]]] = {
    "cut": lambda lines, random_: lines[: random_.randrange(len(lines) + 1)],
    "shuffle": lambda lines, random_: random_.sample(lines, len(lines)),
    "noise": foreign,
    "double": lambda lines, random_: [line for line in lines for _ in range(random_.choice([0, 1, 1, 2]))],
    "join": lambda lines, random_: ["".join(lines[i : i + 2]) for i in range(0, len(lines), 2)],
    "letters": letters,
}
SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("parse", PARSERS, ids=lambda parse: parse.__name__)
@given(text=damaged())
@SETTINGS
def test_no_parser_breaks_on_a_damaged_output(parse: Callable[[str], object], text: str) -> None:
    """It returns facts or raises a ProbeError; nothing else comes out of it."""
    assert answered(parse, text)


@pytest.mark.parametrize("parse", PARSERS, ids=lambda parse: parse.__name__)
@given(text=st.text(max_size=200))
@SETTINGS
def test_no_parser_breaks_on_any_text(parse: Callable[[str], object], text: str) -> None:
    """Text of no tool at all is refused or gives nothing."""
    assert answered(parse, text)


@pytest.mark.parametrize("name", HEALTHY)
def test_a_table_that_is_cut_anywhere_is_no_healthy_machine(name: str) -> None:
    """At every line, and in the middle of each, what is left is refused, or all of its chips are still there."""
    text = TEXTS[name].rstrip("\n")
    chips = parse_info(text).chips
    places = [i for i, letter in enumerate(text) if letter == "\n"]

    for place in [*places, *(place + 20 for place in places[:-1])]:
        try:
            report = whole(parse_info(text[:place]))
        except ProbeError:
            continue
        if report.driver_version.startswith("22.") and text[:place].endswith("+"):
            continue  # tables of these releases may end so; the counts of npu-presence find what is missing
        assert report.chips == chips, f"cut at {place}: {len(report.chips)} of {len(chips)} chips passed"


@given(text=damaged())
@SETTINGS
def test_checks_of_a_damaged_table_never_raise_and_pass_whole_ones_only(text: str) -> None:
    """Judges take what parsers give; where a chip passes, its word is OK."""
    try:
        report = whole(parse_info(text))
    except ProbeError:
        return
    health = npu_health.judge(report.chips, {})
    npu_sensors.judge(report.chips)
    hbm_free.judge(hbm_free.measure(report.chips, report.processes, {}, None), is_needed=True)

    assert (health.verdict is Verdict.PASS) == all(chip.health == "OK" for chip in report.chips)


@given(cpus=st.frozensets(st.integers(0, 4095), max_size=60))
def test_a_list_of_cpus_is_written_and_read_back(cpus: frozenset[int]) -> None:
    """Every set survives."""
    assert parse_cpus(format_cpus(cpus)) == cpus


VERSIONS = st.from_regex(
    r"\A\d{1,2}\.\d{1,2}(\.\d{1,2}(\.H\d{1,3}|\.\d{1,2}\.\d{1,3}|\.alpha\d{1,3}|-beta\.\d)?|\.RC\d(\.\d|\.alpha\d{1,3})?"
    r"|\.T\d{1,2}|\.rc\d\.b\d{3})?\Z"
)


@given(texts=st.tuples(VERSIONS, VERSIONS, VERSIONS))
def test_versions_are_in_one_order_and_read_back(texts: tuple[str, str, str]) -> None:
    """Of any two one comes first or they are equal, of three the order carries over, and the text is kept."""
    a, b, c = (parse_version(text) for text in texts)
    assert a is not None
    assert b is not None
    assert c is not None

    assert [str(a), str(b), str(c)] == [text.strip() for text in texts]
    assert parse_version(str(a)) == a
    assert (a < b) + (a == b) + (b < a) == 1
    assert (a != b) or hash(a) == hash(b)
    assert not (a <= b and b <= c) or a <= c


@given(text=st.text(alphabet="[],.0123456789rcXH", max_size=40), version=VERSIONS)
def test_ranges_of_any_form_are_read(text: str, version: str) -> None:
    """What a version file declares may be damaged; asking it never breaks."""
    assert in_ranges(version, parse_ranges(text)) in (True, False)


@given(text=damaged())
@SETTINGS
def test_a_damaged_install_log_gives_what_can_be_read(text: str, host) -> None:
    """A log is read line by line; a line that is broken is passed over."""
    line = "[Driver] [2024-11-02 10:20:11] [INFO] ./Ascend-hdk-910b-npu-driver_24.1.rc3_linux-aarch64.run --full\n"
    files = host(
        {"/var/log/ascend_seclog/operation.log": text + "\n" + line + "[Firmware] [2024-99-99 99:99:99] x.run --full"}
    )

    assert [one.date for one in read_installations(files)] == ["2024-11-02"]
