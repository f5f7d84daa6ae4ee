"""The two accounts: HwHiAiUser, which owns the device nodes, and ascendd, which the service runs as."""

from __future__ import annotations

from typing import List, Sequence

from ascendd.errors import HostError

from ..action import Action, Command, RestoreFiles, WriteFile
from ..bundle import Bundle
from ..host import Host
from ..settings import Settings
from ..state import InstallState
from ..step import Detection, Found, Step

VENDOR_ACCOUNT = "HwHiAiUser"
VENDOR_HOME = "/home/HwHiAiUser"
SERVICE_ACCOUNT = "ascendd"
SYSUSERS = "/etc/sysusers.d/ascendd.conf"
# useradd, groupadd and userdel: 9 is "already there", 6 is "not there"; after a kill either is as good as success.
_MADE, _GONE = (0, 9), (0, 6)


class VendorAccount(Step):
    """User and group that the driver gives the device nodes to."""

    id = "vendor-account"
    title = f"user and group {VENDOR_ACCOUNT}"
    requires = ("os-packages",)

    def detect(self, host: Host) -> Detection:
        """Look into passwd and group."""
        if host.account("passwd", VENDOR_ACCOUNT) and host.account("group", VENDOR_ACCOUNT):
            return Detection(Found.PRESENT, None, f"{VENDOR_ACCOUNT} is there")
        return Detection(Found.ABSENT, None, f"{VENDOR_ACCOUNT} is not there")

    def act(self, host: Host, found: Found) -> Sequence[Action]:
        """Make the group and the user."""
        return (
            Command(("groupadd", "--force", VENDOR_ACCOUNT), _MADE),
            Command(
                ("useradd", "--gid", VENDOR_ACCOUNT, "--home-dir", VENDOR_HOME, "--create-home", VENDOR_ACCOUNT),
                _MADE,
                makes=(VENDOR_HOME,),
            ),
        )

    def prove(self, host: Host) -> str:
        """See both."""
        return _seen(self, host)

    def undo(self, host: Host, state: InstallState) -> Sequence[Action]:
        """Remove both, and the home that was made for the user."""
        if not state.was_absent(self.id):
            return ()
        made_home = state.files.get(VENDOR_HOME, {}).get("kind") == "absent"
        remove = ("userdel", "--remove", VENDOR_ACCOUNT) if made_home else ("userdel", VENDOR_ACCOUNT)
        # userdel takes the group of the same name along where login.defs says so. 12: the home could not be removed.
        return (Command(remove, (*_GONE, 12)), Command(("groupdel", VENDOR_ACCOUNT), _GONE), RestoreFiles())


class ServiceAccount(Step):
    """User of the service, with access to the device nodes through the vendor's group."""

    id = "service-account"
    title = f"user {SERVICE_ACCOUNT}"

    def __init__(self, bundle: Bundle, settings: Settings) -> None:
        self._bundle, self._settings = bundle, settings
        self.requires = ("os-packages", VendorAccount.id) if settings.is_npu else ("os-packages",)

    def detect(self, host: Host) -> Detection:
        """Look into passwd, group and sysusers.d."""
        if host.account("passwd", SERVICE_ACCOUNT) is None:
            return Detection(Found.ABSENT, None, f"{SERVICE_ACCOUNT} is not there")
        if self._settings.is_npu and not self._is_member(host):
            return Detection(Found.OLDER, None, f"{SERVICE_ACCOUNT} is there and no member of {VENDOR_ACCOUNT}")
        if host.files.read_optional(SYSUSERS) != self._content:
            return Detection(Found.OLDER, None, f"{SYSUSERS} is another one")
        return Detection(Found.PRESENT, None, f"{SERVICE_ACCOUNT} is there")

    def act(self, host: Host, found: Found) -> Sequence[Action]:
        """Let systemd-sysusers make the user."""
        source = self._bundle.path("systemd/sysusers.d/ascendd.conf")
        actions: List[Action] = [
            WriteFile(SYSUSERS, self._content, source=source),
            Command(("systemd-sysusers", *_root(host), "ascendd.conf")),
        ]
        if self._settings.is_npu:
            actions.append(Command(("usermod", "--append", "--groups", VENDOR_ACCOUNT, SERVICE_ACCOUNT)))
        return actions

    def prove(self, host: Host) -> str:
        """See the user and its group."""
        return _seen(self, host)

    def undo(self, host: Host, state: InstallState) -> Sequence[Action]:
        """Remove the user that was made; a membership in the vendor's group stays where the user was there before."""
        if not state.was_absent(self.id):
            return (RestoreFiles(),)
        return (
            Command(("userdel", SERVICE_ACCOUNT), _GONE),
            Command(("groupdel", SERVICE_ACCOUNT), _GONE),
            RestoreFiles(),
        )

    @property
    def _content(self) -> str:
        return self._bundle.read("systemd/sysusers.d/ascendd.conf")

    def _is_member(self, host: Host) -> bool:
        group = host.account("group", VENDOR_ACCOUNT)
        return group is not None and SERVICE_ACCOUNT in group[-1].split(",")


def _root(host: Host) -> Sequence[str]:
    return (f"--root={host.files.root}",) if host.files.root else ()


def _seen(step: Step, host: Host) -> str:
    detection = step.detect(host)
    if detection.found is not Found.PRESENT:
        raise HostError(f"{step.title}: {detection.sentence}, though its commands succeeded")
    return detection.sentence
