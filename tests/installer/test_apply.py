"""Fresh installs, upgrades and second runs on a fake host with vendor packages that behave as the vendor's do."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.system


def test_fresh_install(host) -> None:
    """On a bare host the driver goes before the firmware, both before the reboot, CANN and ascendd after it."""
    assert host.apply() == 75, host.output
    first = [call.split("_")[0] for call in host.vendor_calls]
    host.reboot()
    assert host.run("resume", "--yes") == 0, host.output

    assert first == ["Ascend-hdk-910b-npu-driver", "Ascend-hdk-910b-npu-firmware"]
    assert [call.split("_")[0] for call in host.vendor_calls[2:]] == [
        "Ascend-cann-toolkit", "Ascend-cann-910b-ops", "Ascend-cann-nnal"]  # fmt: skip
    driver, firmware, toolkit = host.vendor_calls[:3]
    assert driver.endswith(".run --full --install-for-all --quiet --install-path=/usr/local/Ascend")
    assert firmware.endswith(".run --full --quiet")
    assert toolkit.endswith("--install --quiet --install-path=/usr/local/Ascend --install-for-all")
    assert (host.root / "etc/ascendd/cann.env").read_text().splitlines()[1:] == [
        'ASCEND_HOME_PATH="/usr/local/Ascend/cann-8.5.0"', 'ATB_HOME_PATH="/usr/local/Ascend/nnal/atb/latest"']  # fmt: skip
    assert (host.root / "opt/ascendd/0.1.0/requirements.txt").read_text() == "torch==2.9.0\ntorch-npu==2.9.0\n"
    assert "HwHiAiUser:x:1001:ascendd" in (host.root / "etc/group").read_text()
    assert {entry["status"] for entry in host.state["steps"].values()} == {"done"}
    assert "min left" in host.output


def test_pip_sees_no_index(host) -> None:
    """Every pip command names the wheels of the bundle and no index."""
    host.install()

    pips = [call for call in host.calls if "-m pip install" in call]
    assert len(pips) == 2
    assert all("--no-index --find-links" in call for call in pips)


def test_second_apply_changes_nothing(host) -> None:
    """On a healthy host `plan` says nothing to do, and `apply` leaves every byte, its state and its log alone."""
    host.install()
    log = (host.root / "var/log/ascendd-installer/install.log").read_bytes()
    before = host.tree()

    assert host.run("plan", "--media", str(host.media)) == 0
    assert host.output.endswith("nothing to do\n")
    assert host.apply() == 0
    assert host.tree() == before
    assert (host.root / "var/log/ascendd-installer/install.log").read_bytes() == log


def test_plan_shows_what_apply_runs(host) -> None:
    """Each command that apply runs was shown by plan, and plan itself touches nothing."""
    before = host.tree()
    assert host.run("plan", "--media", str(host.media)) == 0, host.output
    shown = host.output
    assert host.tree() == before
    host.install()

    log = (host.root / "var/log/ascendd-installer/install.log").read_text()
    commands = [line.split(" $ ", 1)[1] for line in log.splitlines() if " $ " in line]
    assert len(commands) > 12
    assert [command for command in commands if command not in shown] == []


def test_upgrade_puts_the_firmware_first(host) -> None:
    """Where a driver is installed, firmware then driver are upgraded, and uninstall leaves both as they are now."""
    host.install_by_hand("Ascend-hdk-910b-npu-driver_23.0.3_linux-x86_64.run")
    host.install_by_hand("Ascend-hdk-910b-npu-firmware_7.1.0.5.220.run")
    host.calls_path.unlink()
    host.install()
    upgrades = host.vendor_calls[:2]
    assert host.run("uninstall", "--yes") == 0, host.output

    assert upgrades[0].endswith("firmware_7.5.0.1.129.run --upgrade --quiet")
    assert upgrades[1].endswith("driver_24.1.0_linux-x86_64.run --upgrade --quiet")
    assert "Version=24.1.0" in (host.root / "usr/local/Ascend/driver/version.info").read_text()
    assert not (host.root / "opt/ascendd").exists()


def test_driver_without_firmware(host) -> None:
    """A driver that lacks its firmware is no obstacle: the firmware is installed and the driver stays."""
    host.install_by_hand("Ascend-hdk-910b-npu-driver_24.1.0_linux-x86_64.run")
    host.calls_path.unlink()
    host.install()

    assert [call.split("_")[0] for call in host.vendor_calls[:2]] == [
        "Ascend-hdk-910b-npu-firmware", "Ascend-cann-toolkit"]  # fmt: skip


def test_cpu_host_needs_no_media(host) -> None:
    """With --device cpu nothing of the vendor is asked for, and no reboot."""
    assert host.run("apply", "--yes", "--device", "cpu") == 0, host.output

    assert host.vendor_calls == []
    assert "HwHiAiUser" not in (host.root / "etc/passwd").read_text()
    assert (host.root / "usr/local/bin/ascendd").is_symlink()


def test_reboot_by_itself(host) -> None:
    """With --reboot a one-shot unit is there while the reboot is outstanding, and gone once it went on."""
    assert host.apply("--reboot") == 0, host.output
    unit = (host.root / "etc/systemd/system/ascendd-install-resume.service").read_text()
    wants = host.root / "etc/systemd/system/multi-user.target.wants"
    assert (wants / "ascendd-install-resume.service").is_symlink()
    assert "systemctl reboot" in host.calls
    assert f"ExecStart={host.bundle}/install.sh resume --yes" in unit
    assert host.run("resume", "--yes") == 0, host.output

    assert not (host.root / "etc/systemd/system/ascendd-install-resume.service").exists()
    assert not wants.exists()


def test_verify_tells_what_is_broken(host) -> None:
    """`verify` is silent on a healthy host and names a unit that somebody edited."""
    host.install()
    assert host.run("verify", "--media", str(host.media)) == 0, host.output
    host.write("etc/systemd/system/ascendd@.service", "edited\n")

    assert host.run("verify", "--media", str(host.media)) == 69
    assert "FAIL  systemd units: the units are not those of this release" in host.output


def test_failing_doctor_fails_the_run(host) -> None:
    """A doctor with failures ends the run with 71, and `resume` asks it again."""
    (host.folder / "doctor-fails").touch()
    assert host.apply() == 75
    host.reboot()
    assert host.run("resume", "--yes") == 71
    assert "doctor --device npu" in host.output
    (host.folder / "doctor-fails").unlink()

    assert host.run("resume", "--yes") == 0, host.output
