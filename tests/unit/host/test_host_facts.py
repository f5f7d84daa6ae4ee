"""What the host itself says: processes on chips, kernel faults, ports, start and installations, libraries, policy."""

import json
import subprocess
from pathlib import Path

import pytest

from ascendd.errors import ProbeParseError, ProbeUnavailable
from ascendd.host.boot import boot_time_s, read_installations, restart_request
from ascendd.host.command import CommandOutcome
from ascendd.host.device_holders import find_holders, find_leftovers, read_process
from ascendd.host.elf import read_needed
from ascendd.host.kernel_log import find_faults, read_kernel_log
from ascendd.host.policy import read_policy
from ascendd.host.tcp_ports import client_ports, listening_ports, reserved_ports
from ascendd.host.vendor_facts import load_facts


def test_the_holders_of_a_chip_are_found_by_their_open_nodes(host, tmp_path: Path) -> None:
    """A process with davinciN open holds the chip; the manager's node alone does not count."""
    files = host({
        "/proc/7/stat": "7 (a (b) c) S 1 7 7", "/proc/7/cmdline": "python3\0-m\0ascendd\0run", "/proc/7/fd/.keep": "",
        "/proc/7/cgroup": "0::/ascendd.slice/ascendd@qwen2.service", "/proc/8/stat": "8 (x) S 1", "/proc/8/fd/.keep": "",
    })  # fmt: skip
    (tmp_path / "proc/7/fd/3").symlink_to("/dev/davinci5")
    (tmp_path / "proc/8/fd/3").symlink_to("/dev/davinci_manager")

    (holder,) = find_holders(files)

    assert (holder.pid, holder.name, holder.state, holder.chips) == (7, "a (b) c", "S", (5,))
    assert (holder.unit, holder.is_ours) == ("ascendd@qwen2.service", True)
    assert read_process(files, 9) is None


def test_a_zombie_of_ours_is_a_leftover_and_another_is_not(host) -> None:
    """A zombie has no command line, so its name tells whose it is."""
    pauses: list[float] = []
    files = host(
        {"/proc/7/stat": "7 (ascendd-worker) Z 1", "/proc/8/stat": "8 (sh) Z 1", "/proc/9/stat": "9 (ascendd) S 1"}
    )

    assert [process.pid for process in find_leftovers(files, pauses.append)] == [7]
    assert sum(pauses) == pytest.approx(2.0)


def test_a_zombie_that_is_reaped_in_time_is_no_leftover(host, tmp_path: Path) -> None:
    """A tool that a daemon just ended is one for a moment, and a process that has its id now is another one."""
    dead = "7 (npu-smi) Z 1 " + " ".join(["0"] * 17)
    cgroup = {"/proc/7/cgroup": "0::/ascendd.slice/ascendd@qwen2.service"}
    reaped, reused = host({"/proc/7/stat": f"{dead} 100", **cgroup}), tmp_path / "proc/7/stat"

    def reap(_pause_s: float) -> None:
        reused.write_text(f"{dead} 200")

    assert find_leftovers(reaped, reap) == ()
    assert [process.pid for process in find_leftovers(reaped, lambda _pause_s: None)] == [7]


def test_the_journal_comes_first_and_dmesg_second() -> None:
    """An empty journal is no log; where neither may be read, both reasons are told."""
    answers = {"journalctl": (1, "", "no journal files"), "dmesg": (0, "[    0.000000] line\n", "")}

    def run(argv, timeout_s, environ) -> CommandOutcome:
        status, stdout, stderr = answers[argv[0]]
        return CommandOutcome(tuple(argv), status, stdout, stderr, 0.0)

    assert read_kernel_log(run, {}) == "[    0.000000] line\n"
    answers["dmesg"] = (1, "", "Operation not permitted")
    with pytest.raises(ProbeUnavailable, match=r"no journal files.*Operation not permitted"):
        read_kernel_log(run, {})


HARMLESS = [
    "davinci_manager: device(2) is working", "pcieport 0000:c0:00.0: AER: enabled with IRQ 41",
    "EDAC MC0: Giving out device to module", "devdrv heart beat start", "hbm temperature 45", "systemd[1]: Started Out.",
    "pciehp: Slot(5): Link Up",
]  # fmt: skip


def test_harmless_lines_are_no_fault() -> None:
    """What a healthy start prints is not taken for a fault."""
    assert find_faults("\n".join(HARMLESS)) == ()


SAMPLES = {
    "device-not-working": "[12.3] [drv] device(2) is not working.",
    "heartbeat-lost": "devdrv_manager: device 3 heart beat lost",
    "pcie-link-down": "pciehp 0000:c0:00.0: Slot(5): Card not present",
    "pcie-uncorrected": "AER: Uncorrected (Fatal) error received: 0000:c1:00.0",
    "pcie-corrected": "AER: Corrected error received: 0000:c1:00.0",
    "hbm-multi-bit": "hbm multi bit ecc error, device 1",
    "host-memory-error": "[Hardware Error]: event severity: fatal",
    "hung-task": "INFO: task npu-smi:4711 blocked for more than 120 seconds.",
    "out-of-memory": "Out of memory: Killed process 4711 (python3)",
}


def test_every_kind_of_kernel_fault_is_known_by_a_sample() -> None:
    """Each rule finds its own line and no other; severities and runbooks are what a check can use."""
    rules = {rule["id"]: rule for rule in load_facts("kernel_faults")["rules"]}
    pages = Path(__file__).resolve().parents[3] / "docs" / "runbooks"

    assert rules.keys() == SAMPLES.keys()
    for name, line in SAMPLES.items():
        (fault,) = find_faults(line + "\n" + line)
        assert (fault.id, fault.count, fault.last_line) == (name, 2, line)
        assert fault.severity in ("fail", "warn")
        assert (pages / f"{fault.runbook}.md").exists()


def test_listeners_and_ranges_are_read(host) -> None:
    """Only sockets in state LISTEN count, of either family; a reserved list can be empty."""
    row = "   0: {}:{:04X} 00000000:0000 {} 00000000:00000000 00:00000000 00000000     0        0 1 1\n"
    files = host({
        "/proc/net/tcp": "  sl  local_address rem_address   st\n" + row.format("0100007F", 60001, "0A") + row.format("0100007F", 60002, "01"),
        "/proc/net/tcp6": "  sl  local_address                         remote_address                        st\n" + row.format("0" * 32, 16666, "0A"),
        "/proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n", "/proc/sys/net/ipv4/ip_local_reserved_ports": "\n",
    })  # fmt: skip

    assert listening_ports(files) == {60001, 16666}
    assert client_ports(files) == (32768, 60999)
    assert reserved_ports(files) == frozenset()


def test_ranges_that_cannot_be_read_are_an_error(host) -> None:
    """No default is taken for a file of another form."""
    files = host({
        "/proc/sys/net/ipv4/ip_local_port_range": "many", "/proc/sys/net/ipv4/ip_local_reserved_ports": "a-b",
        "/proc/uptime": "long",
    })  # fmt: skip

    for read in (client_ports, reserved_ports, boot_time_s):
        with pytest.raises(ProbeParseError):
            read(files)
    with pytest.raises(ProbeUnavailable):
        listening_ports(files)


def test_installations_are_ordered_by_time(host) -> None:
    """Both logs are read; the latest comes last."""
    files = host({
        "/var/log/ascend_seclog/operation.log": "[Firmware] [2025-01-02 00:00:00] [INFO] ./Ascend-hdk-910b-npu-firmware_7.5.run --full\n",
        "/var/log/ascend_seclog/ascend_install.log": "[Driver] [2024-01-02 00:00:00] [INFO] ./Ascend-hdk-910b-npu-driver_24.run --upgrade\n",
        "/run/reboot-required": "",
    })  # fmt: skip

    assert [(one.kind, one.date) for one in read_installations(files)] == [
        ("driver", "2024-01-02"),
        ("firmware", "2025-01-02"),
    ]
    assert restart_request(files) == "/run/reboot-required"


def test_the_needed_libraries_are_read_from_the_file(tmp_path: Path) -> None:
    """A library linked against another names it; what is cut short or no library is refused."""
    (tmp_path / "a.c").write_text("int a(void) { return 1; }\n")
    (tmp_path / "b.c").write_text("int a(void); int b(void) { return a(); }\n")
    for name, more in (("a", []), ("b", ["-L", str(tmp_path), "-Wl,--no-as-needed", "-la"])):
        command = [
            "gcc",
            "-shared",
            "-fPIC",
            f"-Wl,-soname,lib{name}.so",
            "-o",
            tmp_path / f"lib{name}.so",
            tmp_path / f"{name}.c",
        ]
        subprocess.run([*command, *more], check=True)

    machine, needed = read_needed(str(tmp_path / "libb.so"))
    data = (tmp_path / "libb.so").read_bytes()

    assert machine in ("x86_64", "aarch64")
    assert needed[0] == "liba.so"
    for broken in (b"", data[:40], data[:200], b"\x7fELF" + data[4:60], b"#!/bin/sh\n"):
        (tmp_path / "broken.so").write_bytes(broken)
        with pytest.raises(ProbeParseError, match="not a whole shared library"):
            read_needed(str(tmp_path / "broken.so"))
    with pytest.raises(ProbeUnavailable, match="cannot be read"):
        read_needed(str(tmp_path / "gone.so"))


def test_a_site_tightens_the_policy_and_permits_a_pair(host) -> None:
    """Raised minima and permits are taken; a permit covers exactly the layers that it names."""
    permit = {"cann": "7.0.0.H100", "torch": "2.13.X", "reason": "ticket 4711"}
    text = json.dumps({"cann_minimum": "8.2.RC1", "firmware_minimum": {"950": "9.1.0"}, "permit": [permit]})
    policy = read_policy(host({"/etc/ascendd/policy.json": text}))

    assert (policy.cann_minimum, policy.firmware_minimum["950"], policy.site_file) == (
        "8.2.RC1",
        "9.1.0",
        "/etc/ascendd/policy.json",
    )
    assert policy.permit(cann="7.0.0.H100", torch="2.13.0") == "ticket 4711"
    assert policy.permit(cann="7.0.0.H101", torch="2.13.0") is None
    assert policy.permit(cann="7.0.0.H100", driver="24.1.0") is None
    assert policy.lowest_firmware(("950",)) == "9.1.0"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"), ("[]", "no object"), ('{"cann": "8"}', "['cann'] is not known"),
        ('{"cann_minimum": "7.0.0"}', "below 7.0.0.H100"), ('{"cann_minimum": "new"}', "no known form"),
        ('{"firmware_minimum": {"950": "8.0.0"}}', "below 9.0.0"), ('{"firmware_date_minimum": "2024"}', "no date"),
        ('{"permit": {}}', "permit must be a list"), ('{"permit": [{"cann": "8.0.0", "reason": "x"}]}', "two or more"),
        ('{"permit": [{"cann": "8.0.0", "torch": "2.1.0"}]}', "and a reason"), ('{"permit": [1]}', "object of texts"),
        ('{"cann_minimum": "7.1.T5"}', "no known form"),
    ],
)  # fmt: skip
def test_a_policy_that_breaks_a_rule_is_refused(host, text: str, words: str) -> None:
    """No part of a broken file is taken, and the message says what to write."""
    with pytest.raises(ProbeParseError) as caught:
        read_policy(host({"/etc/ascendd/policy.json": text}))

    assert words in caught.value.message
