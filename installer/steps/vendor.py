"""The vendor's packages: each `.run` file is started as documented, and proven by the files that it leaves."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

from ascendd.errors import HostError
from ascendd.host.cann_version import in_ranges, parse_ranges, parse_version
from ascendd.host.version_files import read_cann, read_driver, read_firmware

from ..action import Action, Command, RestoreFiles
from ..chips import busy_or_sick, holders
from ..host import Host
from ..media import Media, PackageKind
from ..settings import Settings
from ..state import InstallState
from ..step import Detection, Found, Step, StepStatus

# 2 is what the vendor's packages end with when they succeeded and have something to say.
_ACCEPTED = (0, 2)


@dataclass(frozen=True)
class _RebootingCommand(Command):
    """A command after which the host has to be restarted, whether or not it gets to its end."""

    def perform(self, host: Host, state: InstallState, step_id: str) -> None:
        """Note the boot, then run."""
        state.reboot_after = host.boot_id
        state.save()
        super().perform(host, state, step_id)


class VendorPackage(Step):
    """One `.run` file of the media; without one, what is installed stays."""

    kind: PackageKind
    reboots = False
    limit_s = 1800.0

    def __init__(self, settings: Settings, media: Media) -> None:
        self.id = self.kind.value
        self._settings = settings
        self._media = media
        self._package = media.package(self.kind)

    @abstractmethod
    def installed(self, host: Host) -> Optional[str]:
        """Return the version on disk, None without one."""

    def is_half_installed(self, host: Host) -> bool:
        """Whether an installation was begun and not finished."""
        return False

    def detect(self, host: Host) -> Detection:
        """Compare the version on disk with the package."""
        version, package = self.installed(host), self._package
        if self.is_half_installed(host):
            return Detection(
                Found.BROKEN, version, f"{self.title} {version or ''} is half installed".replace("  ", " ")
            )
        if version is None:
            return Detection(Found.ABSENT, None, f"{self.title} is not installed")
        if package is None:
            return Detection(Found.PRESENT, version, f"{self.title} {version} stays, the media hold no other")
        return self._compare(version, package.version)

    def _compare(self, installed: str, wanted: str) -> Detection:
        here, there = parse_version(installed), parse_version(wanted)
        if installed.lower() == wanted.lower() or (here is not None and here == there):
            return Detection(Found.PRESENT, installed, f"{self.title} {installed} is installed")
        if here is not None and there is not None and here > there:
            return Detection(Found.PRESENT, installed, f"{self.title} {installed} stays, it is newer than {wanted}")
        return Detection(Found.OLDER, installed, f"{self.title} {installed} is installed, {wanted} replaces it")

    def check(self, host: Host, state: InstallState) -> List[str]:
        """Refuse what cannot begin, and a half installation that is not of this installer's making."""
        found = self.detect(host).found
        if found is Found.PRESENT:
            return []
        if self._package is None:
            return [f"{self.title} is not installed and the media hold no package of it"]
        if found is Found.BROKEN and state.status(self.id) is StepStatus.PENDING:
            return [
                f"{self.title} is half installed by somebody else; remove it with "
                f"`bash {self._package.path} --uninstall` and reboot, then begin again"
            ]
        return []

    def act(self, host: Host, found: Found) -> Sequence[Action]:
        """Start the package."""
        if self._package is None:
            return ()  # `check` refuses it; `plan` shows the rest all the same.
        argv = ("bash", self._package.path, *self._flags(host, found))
        command = _RebootingCommand if self.reboots else Command
        return (command(argv, _ACCEPTED, self.limit_s),)

    def _flags(self, host: Host, found: Found) -> Tuple[str, ...]:
        return ("--install", "--quiet", f"--install-path={host.real(self._settings.install_path)}", "--install-for-all")

    def prove(self, host: Host) -> str:
        """Read the version again."""
        return self.look_again(
            host,
            "its package reported success",
            "Read the vendor's log, /var/log/ascend_seclog/ascend_install.log, then run `resume`.",
        )

    def undo(self, host: Host, state: InstallState) -> Sequence[Action]:
        """Let the package remove itself where there was none before; an older version is not brought back."""
        if not state.was_absent(self.id) or (self.installed(host) is None and not self.is_half_installed(host)):
            return (RestoreFiles(),)
        if self._package is None:
            raise HostError(
                f"{self.title} is removed by its own package, and the media folder does not hold it",
                remedy="Run `uninstall --media FOLDER` with the folder that it was installed from.",
            )
        command = _RebootingCommand if self.reboots else Command
        return (
            command(("bash", self._package.path, "--uninstall", "--quiet"), _ACCEPTED, self.limit_s),
            RestoreFiles(),
        )


class _ChipPackage(VendorPackage):
    """Driver or firmware: not while a process holds a chip, and not on a chip that is not well."""

    reboots = True

    def check(self, host: Host, state: InstallState) -> List[str]:
        problems = super().check(host, state)
        if self.detect(host).found is Found.PRESENT:
            return problems
        problems += holders(host)
        # After the first package the chips are between two versions until the reboot, so they are not asked then.
        is_ours = state.is_unfinished and state.found("driver") is Found.ABSENT
        if not is_ours and state.reboot_after != host.boot_id and state.status(self.id) is StepStatus.PENDING:
            problems += busy_or_sick(host)
        return problems


class Driver(_ChipPackage):
    """Driver; on a fresh host before the firmware, on an upgrade after it."""

    kind = PackageKind.DRIVER
    title = "NPU driver"
    estimate_s = 240.0

    def __init__(self, settings: Settings, media: Media, *, is_upgrade: bool) -> None:
        super().__init__(settings, media)
        self.requires = ("firmware",) if is_upgrade else ("vendor-account",)

    def installed(self, host: Host) -> Optional[str]:
        """Return Version= of driver/version.info."""
        return read_driver(host.files).version

    def is_half_installed(self, host: Host) -> bool:
        """version.info without the upgrade tool, or the vendor's own mark."""
        driver = read_driver(host.files)
        tool = driver.path.rsplit("/", 1)[0] + "/tools/upgrade-tool"
        return driver.version is not None and not (driver.is_complete and host.files.exists(tool))

    def _flags(self, host: Host, found: Found) -> Tuple[str, ...]:
        if found is Found.OLDER:
            return ("--upgrade", "--quiet")
        path = f"--install-path={host.real(self._settings.install_path)}"
        return ("--full", "--install-for-all", "--quiet", path)


class Firmware(_ChipPackage):
    """Firmware; of the generation of the chips, and within what the driver takes."""

    kind = PackageKind.FIRMWARE
    title = "NPU firmware"
    estimate_s = 300.0

    def __init__(self, settings: Settings, media: Media, *, is_upgrade: bool) -> None:
        super().__init__(settings, media)
        self.requires = ("vendor-account",) if is_upgrade else ("driver",)

    def installed(self, host: Host) -> Optional[str]:
        """Return Version= of firmware/version.info."""
        return read_firmware(host.files).version

    def check(self, host: Host, state: InstallState) -> List[str]:
        """Also refuse another generation, and a version outside what the driver of the media declares."""
        problems = super().check(host, state)
        if self._package is None:
            return problems
        generation = read_firmware(host.files).generation
        if generation is not None and generation != self._package.chip:
            problems.append(
                f"{self._package.name} is for {self._package.chip}, {generation} firmware was installed here"
            )
        driver, driver_package = read_driver(host.files), self._media.package(PackageKind.DRIVER)
        if driver.version and (driver_package is None or driver_package.version.lower() == driver.version.lower()):
            ranges = parse_ranges(driver.compatible_firmware)
            if ranges and not in_ranges(self._package.version, ranges):
                problems.append(
                    f"{self._package.name} is outside {driver.compatible_firmware}, which driver {driver.version} takes"
                )
        return problems

    def _flags(self, host: Host, found: Found) -> Tuple[str, ...]:
        return ("--upgrade", "--quiet") if found is Found.OLDER else ("--full", "--quiet")


class Toolkit(VendorPackage):
    """CANN toolkit; versions stand side by side, so another one is no obstacle."""

    kind = PackageKind.TOOLKIT
    title = "CANN toolkit"
    requires = ("reboot",)
    estimate_s = 180.0

    def installed(self, host: Host) -> Optional[str]:
        """Return the version of the package where it is installed, else that of the first toolkit found."""
        versions = [cann.version for cann in read_cann(host.files, {})]
        wanted = self._package.version.lower() if self._package else ""
        return next((version for version in versions if version.lower() == wanted), versions[0] if versions else None)

    def _compare(self, installed: str, wanted: str) -> Detection:
        if installed.lower() == wanted.lower():
            return Detection(Found.PRESENT, installed, f"{self.title} {installed} is installed")
        return Detection(Found.OLDER, installed, f"{self.title} {installed} is installed, {wanted} comes beside it")


class Ops(VendorPackage):
    """Kernels (CANN up to 8.3) or ops (8.5 and later) of the chip, for the toolkit of the same version."""

    kind = PackageKind.OPS
    title = "CANN kernels or ops"
    requires = ("toolkit",)
    estimate_s = 180.0

    def installed(self, host: Host) -> Optional[str]:
        """Return the version of the toolkit that has operators for the chip of the package, or for any without one."""
        package = self._package
        for cann in read_cann(host.files, {}):
            fits = package is None or (
                cann.version.lower() == package.version.lower()
                and any(chip in (package.chip, "ascend" + package.chip) for chip in cann.ops_chips)
            )
            if cann.ops_chips and fits:
                return cann.version
        return None


class Nnal(VendorPackage):
    """NNAL, the ATB operators; only where the media hold it."""

    kind = PackageKind.NNAL
    title = "NNAL"
    requires = ("toolkit",)
    estimate_s = 60.0

    def installed(self, host: Host) -> Optional[str]:
        """Return the version of `Ascend-cann-atb : VERSION`."""
        path = f"{self._settings.install_path}/nnal/atb/latest/version.info"
        for line in (host.files.read_optional(path) or "").splitlines():
            name, separator, version = line.partition(":")
            if separator and name.strip().lower() == "ascend-cann-atb":
                return version.strip()
        return None
