"""What is refused, by name, with 69 and before anything is touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.system
OLD_DRIVER, OLD_FIRMWARE = (
    "Ascend-hdk-910b-npu-driver_23.0.3_linux-x86_64.run",
    "Ascend-hdk-910b-npu-firmware_7.1.0.5.220.run",
)
DRIVER, FIRMWARE, TOOLKIT, OPS, NNAL = (
    "Ascend-hdk-910b-npu-driver_24.1.0_linux-x86_64.run",
    "Ascend-hdk-910b-npu-firmware_7.5.0.1.129.run",
    "Ascend-cann-toolkit_8.5.0_linux-x86_64.run",
    "Ascend-cann-910b-ops_8.5.0_linux-x86_64.run",
    "Ascend-cann-nnal_8.5.0_linux-x86_64.run",
)


def corrupt(host) -> None:
    (host.media / DRIVER).write_text("something else")


def unlisted(host) -> None:
    (host.media / "Ascend-cann-nnal_8.4.0_linux-x86_64.run").write_text("x")


def without_list(host) -> None:
    (host.media / "SHA256SUMS").unlink()


def wrong_chip(host) -> None:
    host.fill_media(DRIVER, FIRMWARE.replace("910b", "910"), TOOLKIT, OPS)


def wrong_architecture(host) -> None:
    host.fill_media(DRIVER.replace("x86_64", "aarch64"), FIRMWARE, TOOLKIT, OPS)


def mixed_cann(host) -> None:
    host.fill_media(DRIVER, FIRMWARE, TOOLKIT.replace("8.5.0", "8.5.1"), OPS)


def two_drivers(host) -> None:
    host.fill_media(DRIVER, DRIVER.replace("24.1.0", "25.0.0"), FIRMWARE, TOOLKIT, OPS)


def lacks_firmware(host) -> None:
    host.fill_media(DRIVER, TOOLKIT, OPS)


def stray_package(host) -> None:
    host.fill_media(DRIVER, FIRMWARE, TOOLKIT, OPS, "Ascend-mindie_2.0_linux.run")


def busy_chip(host) -> None:
    host.install_by_hand(OLD_DRIVER)
    host.install_by_hand(OLD_FIRMWARE)
    host.npu_smi = "info-24.1.0-910B2-4npu-busy-multiproc.txt"


def sick_chip(host) -> None:
    host.install_by_hand(OLD_DRIVER)
    host.install_by_hand(OLD_FIRMWARE)
    host.npu_smi = "abn-health-warning-alarm-critical-24.1.rc3-910B3.txt"


def silent_chip(host) -> None:
    host.install_by_hand(OLD_DRIVER)
    host.install_by_hand(OLD_FIRMWARE)
    host.npu_smi = "abn-dcmi-8005.txt"


def holder(host) -> None:
    folder = host.root / "proc/4711/fd"
    folder.mkdir(parents=True)
    (folder / "7").symlink_to("/dev/davinci0")
    host.write("proc/4711/comm", "python3\n")


def half_driver(host) -> None:
    (host.folder / "fail-driver").touch()
    host.install_by_hand(OLD_DRIVER)
    (host.folder / "fail-driver").unlink()


def other_generation(host) -> None:
    host.write("var/log/ascend_seclog/operation.log", "Ascend-hdk-910-npu-firmware_7.1.0.5.220.run install success\n")


def no_python(host) -> None:
    (host.root / "usr/bin/python3.11").write_text("#!/bin/sh\nexit 1\n")


def no_lspci(host) -> None:
    host.take_tools("lspci")


def debian_package(host) -> None:
    host.add_os_packages(lspci="pciutils_1%3a3.9.0-4_amd64.deb")


def package_of_another_machine(host) -> None:
    host.add_os_packages(lspci="pciutils-3.9.0-1.oe2403.aarch64.rpm")


def two_versions_of_a_package(host) -> None:
    host.add_os_packages(lspci="pciutils-3.9.0-1.oe2403.x86_64.rpm", setpci="pciutils-3.9.1-1.oe2403.x86_64.rpm")


def vendor_rpm(host) -> None:
    host.add_os_packages(atc="Ascend-cann-toolkit-8.5.0-1.x86_64.rpm")


def nameless_package(host) -> None:
    host.add_os_packages(lspci="pciutils.rpm")


def unknown_system(host) -> None:
    host.write("etc/os-release", "ID=alpine\n")


def foreign_release(host) -> None:
    host.write("opt/ascendd/0.1.0/notes", "mine")


CASES: list[tuple[Callable[[Any], None], str]] = [
    (corrupt, f"{DRIVER} is corrupt: its sha256 is"),
    (unlisted, "Ascend-cann-nnal_8.4.0_linux-x86_64.run is not listed in"),
    (without_list, "SHA256SUMS cannot be read"),
    (wrong_chip, "Ascend-hdk-910-npu-firmware_7.5.0.1.129.run is for chip 910, this host has A2"),
    (wrong_architecture, "driver_24.1.0_linux-aarch64.run is for aarch64, this host is x86_64"),
    (mixed_cann, "toolkit 8.5.1 and kernels or ops 8.5.0 are of different releases"),
    (two_drivers, "are both driver packages"),
    (lacks_firmware, "NPU firmware is not installed and the media hold no package of it"),
    (stray_package, "Ascend-mindie_2.0_linux.run is no vendor package known here"),
    (busy_chip, "runs on NPU"),
    (sick_chip, "has health"),
    (silent_chip, "its chips cannot be asked for their health"),
    (holder, "process 4711 (python3) holds /dev/davinci0"),
    (half_driver, "NPU driver is half installed by somebody else"),
    (other_generation, "is for 910b, 910 firmware was installed here"),
    (no_python, "this host has no Python 3.11 with venv and the media hold no package of it; put python3.11*.rpm"),
    (no_lspci, "this host has no lspci and the media hold no package of it; put pciutils*.rpm"),
    (debian_package, "pciutils_1%3a3.9.0-4_amd64.deb is not for this host, whose system takes .rpm packages"),
    (package_of_another_machine, "pciutils-3.9.0-1.oe2403.aarch64.rpm is for aarch64, this host is x86_64"),
    (two_versions_of_a_package, "are versions of one package; leave one of them in the media folder"),
    (vendor_rpm, "Ascend-cann-toolkit-8.5.0-1.x86_64.rpm is no package of the operating system"),
    (nameless_package, "pciutils.rpm is not named as a package of a distribution is"),
    (unknown_system, "this is alpine; the installer knows openEuler, Ubuntu and Debian"),
    (foreign_release, "/opt/ascendd/0.1.0 is there and was not finished by this installer"),
]


@pytest.mark.parametrize(("spoil", "expected"), CASES, ids=[case[0].__name__ for case in CASES])
def test_refused_before_anything_is_touched(host, spoil: Callable[[Any], None], expected: str) -> None:
    """Plan and apply refuse with 69 and the reason; no package was started and the tree is as it was."""
    spoil(host)
    before, calls = host.tree(), host.vendor_calls

    assert host.run("plan", "--media", str(host.media)) == 69, host.output
    assert host.apply() == 69
    assert expected in host.output
    assert host.vendor_calls == calls
    assert host.tree() == before


def test_media_that_rot_between_plan_and_resume(host) -> None:
    """`resume` proves the media again: a package that changed meanwhile is not started."""
    assert host.apply() == 75
    host.reboot()
    (host.media / TOOLKIT).write_text("something else")

    assert host.run("resume", "--yes") == 69
    assert f"{TOOLKIT} is corrupt" in host.output
    assert not (host.root / "usr/local/Ascend/cann").exists()


def test_chip_taken_between_driver_and_firmware(host) -> None:
    """A process that opens a chip while the driver is installed stops the run before the firmware."""
    (host.folder / "fail-firmware").touch()
    assert host.apply() == 71
    (host.folder / "fail-firmware").unlink()
    holder(host)

    assert host.run("resume", "--yes") == 69
    assert not (host.root / "usr/local/Ascend/firmware").exists()


@pytest.mark.parametrize("argv", [("plan", "--nonsense"), ("destroy",), ("apply", "--device", "tpu")])
def test_wrong_usage(host, argv: tuple[str, ...]) -> None:
    """Wrong usage is 64."""
    assert host.run(*argv) == 64


def test_apply_asks_before_it_begins(host) -> None:
    """Without --yes and without a terminal nothing begins."""
    before = host.tree()

    assert host.run("apply", "--media", str(host.media)) == 64
    assert "Add --yes" in host.output
    assert host.tree() == before
