"""DrillLog: a log file whose disk is full, or does not answer, for as long as `ascendd drill` says."""

from __future__ import annotations

import errno
import os
import time

from ascendd.ipc.messages import InjectFault
from ascendd.telemetry.rotating_log import RotatingLog


class DrillLog(RotatingLog):
    """A RotatingLog that takes orders; without one it is what its base is."""

    _full_until_s = 0.0
    _slow_until_s = 0.0

    def take(self, order: InjectFault) -> None:
        """Be on a full disk, or on one that does not answer, for the seconds that `order` says, from now."""
        until_s = time.monotonic() + order.seconds
        if order.kind == "full-disk":
            self._full_until_s = until_s
        elif order.kind == "slow-disk":
            self._slow_until_s = until_s

    def _put(self, data: bytes) -> int:
        while time.monotonic() < self._slow_until_s:
            time.sleep(0.1)  # as a write in the kernel does: nobody here can do anything else meanwhile
        if time.monotonic() < self._full_until_s:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super()._put(data)
