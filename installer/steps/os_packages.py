"""What the driver's package and ascendd need of the operating system, from .deb or .rpm files of the media."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, List, Sequence, Tuple

from ascendd.errors import HostError

from ..action import Action, Command
from ..bundle import Bundle, find_python
from ..host import Host
from ..media import Media
from ..os_packages import OsPackage, PackageManager, choose_manager
from ..state import InstallState
from ..step import Detection, Found, Step

_FOLDERS = ("/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/sbin", "/usr/local/bin")
_RECORD = "installed"


@dataclass(frozen=True)
class Need:
    """
    One thing that has to be there; `packages` are the names that bring it, the usual one of the distribution first.

    One that is not `required` is only needed on some hosts: the driver compiles its module where its package has none
    for the kernel that runs. It is installed where the media hold it.
    """

    what: str
    packages: Tuple[str, ...]
    is_met: Callable[[Host], bool]
    brings: Callable[[OsPackage], bool]
    required: bool = True


class OsPackages(Step):
    """The packages; without work where everything is there, whoever brought it."""

    id = "os-packages"
    title = "packages of the operating system"
    requires = ("system",)
    estimate_s = 60.0

    def __init__(self, bundle: Bundle, media: Media, installs_driver: Callable[[Host], bool]) -> None:
        self._bundle, self._media, self._installs_driver = bundle, media, installs_driver

    def detect(self, host: Host) -> Detection:
        """Look for what is needed, not for names of packages: a Python that was built here counts."""
        needs = self._needs(host)
        missing = [need for need in needs if not need.is_met(host)]
        wanted = [need for need in missing if need.required or self._offers(need)]
        later = "".join(
            f"; {need.what} is not there, which the driver needs only where it has no module for this kernel"
            for need in missing
            if need not in wanted
        )
        if wanted:
            names = ", ".join(f"{need.what} ({need.packages[0]})" for need in wanted)
            return Detection(Found.ABSENT, None, f"not there: {names}{later}")
        return Detection(Found.PRESENT, None, f"there: {', '.join(n.what for n in needs if n.is_met(host))}{later}")

    def check(self, host: Host, state: InstallState) -> List[str]:
        """Refuse a host that lacks something which the media do not hold."""
        manager = choose_manager(host)
        missing = [need for need in self._needs(host) if need.required and not need.is_met(host)]
        return [
            f"this host has no {need.what} and the media hold no package of it; put {need.packages[0]}*"
            f"{manager.ending} and what it depends on into os/ of the media folder, or with a network run "
            f"`{manager.advise(need.packages[:1])}`" + _ADVICE.get(need.what.split()[0], "")
            for need in missing
            if not self._offers(need)
        ]

    def act(self, host: Host, found: Found) -> Sequence[Action]:
        """Let the package manager install the files of the media that are not installed in whatever version."""
        manager = choose_manager(host)
        repair = manager.repair()
        return (
            *((Command(repair),) if repair else ()),
            _InstallPackages(manager, self._media.os_packages),
        )

    def prove(self, host: Host) -> str:
        """Look again."""
        return self.look_again(
            host,
            "the package manager reported success",
            "See what the packages in os/ of the media folder hold, then run `resume`.",
        )

    def undo(self, host: Host, state: InstallState) -> Sequence[Action]:
        """Remove the packages that were not there before, unless another one needs them now."""
        names = state.steps.get(self.id, {}).get(_RECORD, [])
        return (_RemovePackages(choose_manager(host), tuple(names)),) if names else ()

    def offers_python(self, version: str) -> bool:
        """Tell whether the media hold a package of this Python."""
        return any(_brings_python(package, version) for package in self._media.os_packages)

    def _offers(self, need: Need) -> bool:
        return any(map(need.brings, self._media.os_packages))

    def _needs(self, host: Host) -> List[Need]:
        """Return what is needed: a Python always, tools where the driver has work."""
        is_deb = choose_manager(host).ending == ".deb"
        pythons = self._bundle.pythons
        names = tuple(f"python{version}{'-venv' if is_deb else ''}" for version in pythons)
        needs = [
            Need(
                f"Python {' or '.join(pythons)} with venv",
                names,
                lambda host: find_python(host, pythons) is not None,
                lambda package: any(_brings_python(package, version) for version in pythons),
            )
        ]
        if not self._installs_driver(host):
            return needs
        kernel = (host.files.read_optional("/proc/sys/kernel/osrelease") or "").strip()
        headers = f"linux-headers-{kernel}" if is_deb else f"kernel-devel-{kernel}"
        needs += [_command(host, "lspci", "pciutils"), _command(host, "ifconfig", "net-tools")]
        needs += [_command(host, name, name, required=False) for name in ("dkms", "gcc", "make")]
        needs.append(
            Need(
                "the headers of the kernel",
                (headers,),
                lambda host: host.files.exists(f"/lib/modules/{kernel}/build"),
                lambda package: headers in (package.name, f"{package.name}-{package.version}.{package.architecture}"),
                required=False,
            )
        )
        return needs


@dataclass(frozen=True)
class _InstallPackages(Action):
    """The packages of the media that are not installed; what it adds is recorded first, and only that is removed."""

    manager: PackageManager
    packages: Tuple[OsPackage, ...]

    def show(self, host: Host) -> str:
        return Command(self.manager.install(host, self._missing(host))).show(host)

    def perform(self, host: Host, state: InstallState, step_id: str) -> None:
        missing = self._missing(host)
        absent = {package.name for package in self.packages if package.path in missing}
        entry = state.steps[step_id]
        entry[_RECORD] = sorted(absent | set(entry.get(_RECORD, [])))
        state.save()
        if missing:
            Command(self.manager.install(host, missing), limit_s=1800.0).perform(host, state, step_id)

    def _missing(self, host: Host) -> List[str]:
        there = self.manager.installed(host, [package.name for package in self.packages])
        return [package.path for package in self.packages if package.name not in there]


@dataclass(frozen=True)
class _RemovePackages(Action):
    """The packages that were added; the package manager keeps what something else needs by now."""

    manager: PackageManager
    names: Tuple[str, ...]

    def show(self, host: Host) -> str:
        return Command(self.manager.remove(self.names)).show(host)

    def perform(self, host: Host, state: InstallState, step_id: str) -> None:
        there = self.manager.installed(host, self.names)
        if not there:
            return
        try:
            Command(self.manager.remove(sorted(there))).perform(host, state, step_id)
        except HostError:
            left = sorted(self.manager.installed(host, self.names))
            host.say(f"      {', '.join(left)} stay: the package manager refused to remove them, the log says why")


# Where the usual advice does not lead to the end.
_ADVICE = {"Python": "; openEuler 22.03 ships 3.9 only: use a release that has it, or a bundle for its Python"}


def _command(host: Host, name: str, package: str, *, required: bool = True) -> Need:
    paths = [f"{folder}/{name}" for folder in _FOLDERS]
    return Need(
        name,
        (package,),
        lambda host: any(map(host.files.is_executable, paths)),
        lambda candidate: candidate.name == package,
        required,
    )


def _brings_python(package: OsPackage, version: str) -> bool:
    """Tell by the name: python3.11-venv of Debian and Ubuntu, python3.11 or python3-3.11.x of RPM distributions."""
    if package.ending == ".deb":
        return package.name == f"python{version}-venv"
    return package.name == f"python{version}" or (
        package.name == "python3" and package.version.startswith(f"{version}.")
    )
