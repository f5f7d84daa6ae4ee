"""The drop-in of an instance's unit: the chips, CPUs and memory that it is confined to."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ascendd.errors import UsageError
from ascendd.host.drop_in import Placement, drop_in_path, drop_in_text, find_placement

ROOT = Path(__file__).resolve().parents[3]
C1, C2, C3 = "0000:C1:00.0", "0000:C2:00.0", "0000:03:00.0"


def machine(host):
    """Two chips beside NUMA node 1, one beside node 0, on a host of 16 CPUs."""
    pci = "/sys/bus/pci/devices"
    return host({
        "/sys/devices/system/cpu/online": "0-15\n", "/dev/davinci_manager": "", "/dev/davinci4": "",
        f"{pci}/{C1.lower()}/local_cpulist": "8-15\n", f"{pci}/{C1.lower()}/numa_node": "1\n",
        f"{pci}/{C2.lower()}/local_cpulist": "8-15\n", f"{pci}/{C2.lower()}/numa_node": "1\n",
        f"{pci}/{C3.lower()}/local_cpulist": "0-7\n", f"{pci}/{C3.lower()}/numa_node": "0\n",
    })  # fmt: skip


def test_chips_of_one_node_bind_its_cpus_and_prefer_its_memory(host) -> None:
    """Chips in ascending order, the nodes that every chip needs, and what the host says is near."""
    found = find_placement(machine(host), {5: C2, 4: C1})

    assert (found.devices, found.cpus, found.numa_nodes) == ((4, 5), frozenset(range(8, 16)), frozenset({1}))
    assert found.nodes == tuple(
        f"/dev/{name}" for name in ("davinci4", "davinci5", "davinci_manager", "devmm_svm", "hisi_hdc")
    )


def test_chips_of_all_nodes_bind_nothing(host) -> None:
    """The whole machine is no affinity: the kernel and the vendor's own binding know better."""
    found = find_placement(machine(host), {4: C1, 0: C3})

    assert (found.devices, found.cpus, found.numa_nodes) == ((0, 4), frozenset(), frozenset())


@pytest.mark.parametrize("bus_id", [None, "0000:99:00.0"])
def test_a_chip_of_unknown_place_binds_nothing(host, bus_id) -> None:
    """CPUs near one chip alone would be far from the other, whose place the host does not tell."""
    found = find_placement(machine(host), {4: C1, 5: bus_id})

    assert (found.cpus, found.numa_nodes) == (frozenset(), frozenset())


def test_a_container_has_a_manager_of_another_name(host) -> None:
    """Where only davinci_manager_docker is there, that one is allowed."""
    files = host({"/sys/devices/system/cpu/online": "0-3\n", "/dev/davinci_manager_docker": ""})

    assert "/dev/davinci_manager_docker" in find_placement(files, {0: None}).nodes
    assert "/dev/davinci_manager" not in find_placement(files, {0: None}).nodes


def test_the_text_confines_the_unit() -> None:
    """One line a device node, the visible chips, the CPUs and the memory."""
    placement = Placement((4, 5), ("/dev/davinci4", "/dev/davinci5"), frozenset(range(8, 16)), frozenset({1}))
    lines = [line for line in drop_in_text("qwen2", placement).splitlines() if not line.startswith("#")]

    assert lines == [
        "[Service]", "DevicePolicy=closed", "DeviceAllow=/dev/davinci4 rw", "DeviceAllow=/dev/davinci5 rw",
        "Environment=ASCEND_RT_VISIBLE_DEVICES=4,5", "CPUAffinity=8-15", "NUMAPolicy=preferred", "NUMAMask=1",
    ]  # fmt: skip


def test_an_instance_without_chips_opens_no_device() -> None:
    """On a host without NPUs the drop-in closes all devices and binds nothing."""
    text = drop_in_text("demo", Placement())

    assert [line for line in text.splitlines() if not line.startswith("#")] == ["[Service]", "DevicePolicy=closed"]


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a b", "ü", "x" * 101, "a\n", "%i", "a\\x2d"])
def test_a_name_that_is_no_instances_is_refused(name: str) -> None:
    """The path is below systemd's folder for every name that is taken."""
    with pytest.raises(UsageError, match="cannot be the name of an instance"):
        drop_in_path(name)
    assert drop_in_path("qwen2-7b.v1") == "/etc/systemd/system/ascendd@qwen2-7b.v1.service.d/50-devices.conf"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_every_line(tmp_path: Path) -> None:
    """The unit with the drop-in has no line that systemd-analyze verify complains of."""
    placement = Placement((0,), ("/dev/davinci0", "/dev/davinci_manager"), frozenset({0}), frozenset({0}))
    (tmp_path / "ascendd.slice").write_text((ROOT / "systemd/ascendd.slice").read_text())
    unit = tmp_path / "ascendd@qwen2.service"
    text = (ROOT / "systemd/ascendd@.service").read_text()
    unit.write_text(text.replace("/opt/ascendd/current/bin/ascendd", "/bin/true"))
    folder = tmp_path / "ascendd@qwen2.service.d"
    folder.mkdir()
    (folder / "50-devices.conf").write_text(drop_in_text("qwen2", placement))

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False, timeout=120
    )

    assert [line for line in done.stderr.splitlines() if "ascendd" in line or "50-devices" in line] == []
