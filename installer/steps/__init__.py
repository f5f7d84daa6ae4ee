"""The steps of an installation, in the order in which the operator reads them; the graph decides when each is done."""

from __future__ import annotations

from typing import List, Tuple

from ..bundle import Bundle
from ..media import Media, PackageKind
from ..settings import Settings
from ..step import Found, Step
from .accounts import ServiceAccount, VendorAccount
from .cann_environment import CannEnvironment
from .doctor import Doctor
from .os_packages import OsPackages
from .reboot import Reboot
from .release import Release, Venv
from .system import System
from .units import Units
from .vendor import Driver, Firmware, Nnal, Ops, Toolkit


def make_steps(bundle: Bundle, media: Media, settings: Settings, *, is_upgrade: bool) -> Tuple[Step, ...]:
    """Return the steps of a host; `is_upgrade`: a driver was there when the run began, so the firmware goes first."""
    driver = Driver(settings, media, is_upgrade=is_upgrade)
    os_packages = OsPackages(
        bundle, media, lambda host: settings.is_npu and driver.detect(host).found is not Found.PRESENT
    )
    steps: List[Step] = [System(settings), os_packages]
    cann: List[Step] = []
    if settings.is_npu:
        firmware = Firmware(settings, media, is_upgrade=is_upgrade)
        cann = [Toolkit(settings, media), Ops(settings, media)]
        if media.package(PackageKind.NNAL) is not None:
            cann.append(Nnal(settings, media))
        steps += [VendorAccount(), driver, firmware, Reboot(bundle, settings, (driver, firmware)), *cann]
    steps += [
        ServiceAccount(bundle, settings),
        Venv(bundle, media, settings, os_packages),
        Release(bundle, media),
        Units(bundle),
    ]
    if cann:
        steps.append(CannEnvironment(settings, cann))
    steps.append(Doctor(settings, tuple(steps)))
    return tuple(steps)
