"""
Every recorded output of npu-smi, hccn_tool and lspci gives the facts that stand in it.

INDEX.tsv tells where each comes from. Those whose values or layout are inferred and not seen carry `inferred` in the
name of their test: they hold the parser to the description, not to a machine.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ascendd.errors import ProbeParseError, ProbeUnavailable
from ascendd.host import hccn_tool, npu_smi_lists
from ascendd.host.command import CommandOutcome
from ascendd.host.npu_smi import parse_fields, raise_failure
from ascendd.host.npu_smi_table import NpuSmiReport, parse_info
from ascendd.host.npu_topology import parse_topology
from ascendd.host.pci import parse_lspci

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "npu-smi"
INDEX = {
    name: (status, provenance)
    for name, status, provenance in (line.split("\t") for line in (FOLDER / "INDEX.tsv").read_text().splitlines()[1:])
}
TABLES: dict[str, dict[str, object]] = json.loads((FOLDER / "tables.json").read_text())
NOT_SEEN = re.compile("INFERRED|HYPOTHETICAL|inferred|invented")


def marked(name: str) -> str:
    """The test's name: a recording that was not seen on a machine says so."""
    return f"inferred: {name}" if NOT_SEEN.search(INDEX[name][1]) else name


def text_of(name: str) -> str:
    """The recorded output."""
    return (FOLDER / name).read_text()


def outcome_of(name: str) -> CommandOutcome:
    """The recorded output with its status; loader errors come on standard error, all else on standard output."""
    status = INDEX[name][0]
    number = int(status) if status.isdigit() else 1
    is_loader = "-ld-" in name
    return CommandOutcome(
        ("npu-smi",), number, "" if is_loader else text_of(name), text_of(name) if is_loader else "", 0.1
    )


def shown(value: object) -> str:
    """One cell of tables.json."""
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def told(report: NpuSmiReport) -> dict[str, object]:
    """A report in the form of tables.json."""
    return {
        "driver": report.driver_version,
        "complete": report.complete,
        "chips": [
            f"{shown(c.npu_id)}/{shown(c.chip_id)}/{shown(c.phy_id)} {shown(c.name)} {shown(c.health)} {shown(c.bus_id)}"
            f" {shown(c.power_w)}W {shown(c.temperature_c)}C {shown(c.memory_used_mb)}/{shown(c.memory_total_mb)}"
            f" {shown(c.hbm_used_mb)}/{shown(c.hbm_total_mb)}"
            for c in report.chips
        ],
        "processes": [
            f"{p.npu_id}/{shown(p.chip_id)} {p.pid} {p.name or '-'} {shown(p.memory_mb)} {shown(p.container_pid)}"
            for p in report.processes
        ],
        "notes": len(report.notes),
    }


@pytest.mark.parametrize("name", TABLES, ids=marked)
def test_a_table_gives_its_chips_and_processes(name: str) -> None:
    """Every number and word of every chip and process, in each of the layouts."""
    if INDEX[name][0] == "0":
        raise_failure(outcome_of(name))

    assert told(parse_info(text_of(name))) == TABLES[name]


FAILURES = {
    "abn-dcmi-8005.txt": (-8005, "INNER_ERR"),
    "abn-dcmi-8005-old-loglevel-line.txt": (-8005, "INNER_ERR"),
    "abn-dcmi-8008-device-not-exist.txt": (-8008, "DEVICE_NOT_EXIST"),
    "abn-dcmi-8020-busy.txt": (-8020, "RESOURCE_OCCUPIED"),
    "abn-get-board-type-9005.txt": (-9005, "npu get board type failed"),
    "abn-ld-libc_sec-rc127.txt": (None, "npu-smi cannot start: libc_sec.so"),
    "abn-ld-libdrvdsmi-rc127.txt": (None, "npu-smi cannot start: libdrvdsmi_host.so"),
    "abn-no-card-list.txt": (None, "There is no NPU card on this server."),
    "abn-set-reset-locked.txt": (None, "Another user is resetting the NPU(s)"),
    "abn-t-not-supported.txt": (None, "This device does not support querying ecc info."),
    "abn-t-query-failed.txt": (None, 'Failed to query "usages" info.'),
}


@pytest.mark.parametrize("name", FAILURES, ids=marked)
def test_a_failure_is_told_with_its_code(name: str) -> None:
    """Whatever stream and status it comes by, the code and the sentence reach the operator."""
    code, words = FAILURES[name]

    with pytest.raises(ProbeUnavailable) as caught:
        raise_failure(outcome_of(name))

    assert (caught.value.facts.get("dcmi_code"), words in caught.value.message) == (code, True), caught.value.message


FIELDS = {
    "t-board-910A-23.0.5.txt": {"NPU ID": "3", "Software Version": "23.0.5", "Firmware Version": "7.1.0.7.220",
                                "Compatibility": "OK", "PCI Device ID": "0xD801", "Chip Count": "1"},
    "t-board-910B-24.1.0.txt": {"NPU ID": "0", "Software Version": "24.1.0.b062", "Firmware Version": "7.5.0.2.220",
                                "Compatibility": "OK", "PCIe Bus Info": "0000:C1:00.0", "Subsystem Device ID": "0x3002"},
    "t-board-c0-910B.txt": {"Chip Type": "Ascend", "Chip Name": "910B3", "Chip Version": "V1", "Firmware Version": "7.5.0.1.129",
                            "VDie ID": "11AA22BB 20B03704 4A10C8D4 14CC040A 00000001"},
    "abn-t-board-compat-nok.txt": {"NPU ID": "1", "Firmware Version": "7.1.0.5.220", "Compatibility": "NOK"},
    "t-health-910B3.txt": {"NPU ID": "0", "Health": "OK", "Chip Name": "MCU"},
    "abn-t-health-c0-alarm-80E01801.txt": {"Health Status": "Alarm", "Error Code": "80E01801",
                                           "Error Information": "node type=HBM, sensor type=ECC error, event state=Multi Bit ECC"},
}  # fmt: skip


@pytest.mark.parametrize("name", FIELDS, ids=marked)
def test_fields_are_read_by_their_keys(name: str) -> None:
    """Key and value, with blanks and colons in either."""
    fields = parse_fields(text_of(name))

    assert {key: fields.get(key) for key in FIELDS[name]} == FIELDS[name]


READINGS = {
    "t-ecc-910A-clean.txt": {"HBM Double Bit Error Count": 0, "DDR Double Bit Isolated Pages Count": 0},
    "abn-t-ecc-hbm-double-bit.txt": {"HBM Single Bit Error Count": 3, "HBM Double Bit Error Count": 2,
                                     "HBM Double Bit Aggregate Total Err Cnt": 4, "HBM Double Bit Isolated Pages Count": 4},
    "t-common-910B3.txt": {"HBM Usage Rate(%)": 5, "Aicore curFreq(MHZ)": 800, "Temperature(C)": 46, "NPU Real-time Power(W)": 91.3},
    "t-memory-910B.txt": {"HBM Capacity(MB)": 65536, "HBM Clock Speed(MHz)": 1600, "HBM Temperature(C)": 42},
    "t-power-new-910B3.txt": {"NPU Real-time Power(W)": 91.3},
    "t-usages-910A.txt": {"DDR Capacity(MB)": 13553, "HBM Capacity(MB)": 32768, "Ctrlcpu Usage Rate(%)": 1},
    "t-usages-910B3.txt": {"HBM Usage Rate(%)": 89, "Aicore Usage Rate(%)": 97, "NPU Utilization(%)": 97},
}  # fmt: skip


@pytest.mark.parametrize("name", READINGS, ids=marked)
def test_readings_are_read_by_chip(name: str) -> None:
    """Numbers belong to chip 0, whether its id closes the block or opens it."""
    readings = npu_smi_lists.parse_readings(text_of(name))

    assert list(readings) == [0]
    assert {key: readings[0].get(key) for key in READINGS[name]} == READINGS[name]


def parsed_cards(text: str) -> object:
    """The cards of -l: how many, and the chips of each."""
    return {npu_id: fields["Chip Count"] for npu_id, fields in npu_smi_lists.parse_cards(text).items()}


def parsed_mapping(text: str) -> object:
    """The chips of -m."""
    return [(c.npu_id, c.chip_id, c.logic_id, c.phy_id, c.name) for c in npu_smi_lists.parse_mapping(text)]


def parsed_topology(text: str) -> object:
    """How many pairs there are of each kind, and the CPUs near the first and the last chip."""
    found = parse_topology(text)
    links = list(found.between(frozenset(found.chips)).values())
    cpus = [sorted(found.cpus[chip])[::23] for chip in (found.chips[0], found.chips[-1]) if chip in found.cpus]
    return len(found.chips), {word: links.count(word) for word in set(links)}, cpus


def parsed_watch(text: str) -> object:
    """The rows of watch: chip, power, temperature, memory."""
    return [
        (row["ChipId(Idx)"], row["Pwr(W)"], row["Temp(C)"], row["Memory(%)"]) for row in npu_smi_lists.parse_watch(text)
    ]


def parsed_link(text: str) -> object:
    """The state of the link and of its ports."""
    found = hccn_tool.parse_link(text)
    return found.state, found.ports


def parsed_reset(text: str) -> object:
    """How often it asked, and whether it is done."""
    return npu_smi_lists.count_reset_prompts(text), npu_smi_lists.parse_reset(text)


def parsed_pci(text: str) -> object:
    """Address, device and family of each function."""
    return [(npu.address, npu.device_id, npu.family) for npu in parse_lspci(text)]


ADDRESSES = ["01", "02", "41", "42", "81", "82", "c1", "c2"]
OTHERS: dict[str, tuple[Callable[[str], object], object]] = {
    "t-list-l-910B3-8npu.txt": (parsed_cards, dict.fromkeys(range(8), "1")),
    "t-list-l-310P-duo.txt": (parsed_cards, {2: "2", 5: "2"}),
    "t-map-m-310P-duo.txt": (parsed_mapping, [(2, 0, 0, None, "Ascend 310P3"), (2, 1, 1, None, "Ascend 310P3"),
                                              (5, 0, 2, None, "Ascend 310P3"), (5, 1, 3, None, "Ascend 310P3")]),
    "t-map-m-910_93-2npu.txt": (parsed_mapping, [(0, 0, 0, 0, "Ascend910"), (0, 1, 1, 1, "Ascend910"),
                                                 (1, 0, 2, 2, "Ascend910"), (1, 1, 3, 3, "Ascend910")]),
    "t-procmem-910B3.txt": (npu_smi_lists.parse_process_memory, (npu_smi_lists.ProcessMemory(395901, "python3.10", 5120),)),
    "topo-910B3-8npu.txt": (parsed_topology, (8, {"HCCS": 28}, [[144, 167], [48, 71]])),
    "topo-910A-8npu-two-rings.txt": (parsed_topology, (8, {"HCCS": 12, "SYS": 16}, [[144, 167], [48, 71]])),
    "topo-910_93-A3-4die-arm-no-affinity.txt": (parsed_topology, (4, {"SIO": 2, "HCCS_SW": 4}, [])),
    "watch-910_93-power-dash.txt": (parsed_watch, [(0, 163.0, 37, 4), (1, None, 38, 4)]),
    "set-reset-A3-two-prompts.txt": (parsed_reset, (2, True)),
    "hccn-950-port-link-partial.txt": (parsed_link, ("PARTIAL LINK", ((4, "UP"), (5, "DOWN"), (6, "PARTIAL UP")))),
    "abn-hccn-link-down.txt": (parsed_link, ("DOWN", ())),
    "hccn-net-health-init.txt": (hccn_tool.parse_net_health, "Init"),
    "hccn-net-health-success.txt": (hccn_tool.parse_net_health, "Success"),
    "abn-hccn-net-health-fault.txt": (hccn_tool.parse_net_health, "Fault"),
    "abn-hccn-net-health-unreachable.txt": (hccn_tool.parse_net_health, "Unreachable"),
    "hccn-tls.txt": (hccn_tool.parse_tls, False),
    "hccn-ip.txt": (hccn_tool.parse_address, ("192.168.100.101", "255.255.255.0")),
    "abn-hccn-ip-not-preset.txt": (hccn_tool.parse_address, None),
    "hccn-fec.txt": (hccn_tool.parse_fec, "rs FEC mode"),
    "hccn-linkstat-flap.txt": (hccn_tool.parse_link_changes, (3, (
        "Thu Mar 6 08:59:40 2025 LINK UP", "Thu Mar 6 08:59:37 2025 LINK DOWN", "Wed Mar 5 22:10:15 2025 LINK UP"))),
    "lspci-910B-8.txt": (parsed_pci, [(f"0000:{bus}:00.0", "0xd802", "A2") for bus in ADDRESSES]),
    "lspci-n-910B.txt": (parsed_pci, [(f"0000:{bus}:00.0", "0xd802", "A2") for bus in ("c1", "01")]),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS, ids=marked)
def test_the_other_outputs_give_their_facts(name: str) -> None:
    """Lists, mappings, topologies, links and the bus."""
    parse, expected = OTHERS[name]

    assert parse(text_of(name)) == expected


def test_optical_readings_and_counters_are_read() -> None:
    """A module that is present has its readings; counters are numbers by name."""
    optical = hccn_tool.parse_optical(text_of("hccn-optical-present.txt"))
    counters = hccn_tool.parse_counters(text_of("hccn-stat.txt"))

    assert (optical["present"], optical["Rx Power"], optical["Rx Los Flag"]) == ("present", "1.0203 mW", "0xff")
    assert (counters["mac_tx_pfc_pkt_num"], counters["nic_rx_all_pkg_num"], len(counters)) == (12, 6414110, 9)


@pytest.mark.parametrize("name", ["abn-hccn-command-failed.txt", "abn-hccn-timeout.txt"], ids=marked)
def test_a_failure_of_hccn_tool_is_no_answer_to_any_question(name: str) -> None:
    """Every question of it says what the tool said, and none takes it for a value."""
    questions = (
        hccn_tool.parse_link, hccn_tool.parse_net_health, hccn_tool.parse_tls, hccn_tool.parse_address,
        hccn_tool.parse_counters, hccn_tool.parse_link_changes, hccn_tool.parse_fec, hccn_tool.parse_optical,
    )  # fmt: skip

    for parse in questions:
        with pytest.raises(ProbeUnavailable, match="hccn_tool said"):
            parse(text_of(name))


def test_an_output_of_another_question_is_refused() -> None:
    """A link is no TLS switch: what is not known is ProbeParseError, never a default."""
    for parse in (hccn_tool.parse_net_health, hccn_tool.parse_tls, hccn_tool.parse_address, hccn_tool.parse_fec):
        with pytest.raises(ProbeParseError):
            parse(text_of("abn-hccn-link-down.txt"))


def test_every_recording_has_its_expected_facts() -> None:
    """No recording lies about unread: 72 outputs, each in one of the tables above."""
    single = {"hccn-optical-present.txt", "hccn-stat.txt", "abn-hccn-command-failed.txt", "abn-hccn-timeout.txt"}
    covered = TABLES.keys() | FAILURES.keys() | FIELDS.keys() | READINGS.keys() | OTHERS.keys() | single

    assert {path.name for path in FOLDER.glob("*.txt")} == covered == INDEX.keys()
    assert len(covered) == 72
