"""FailureClass: of which kind the end of a child is, which decides what may be tried again. Pure."""

from __future__ import annotations

import enum

from ascendd.errors import (
    AscenddError,
    CollectiveTimeout,
    DeviceEccError,
    DeviceLost,
    DeviceOutOfMemory,
    DeviceUnavailable,
    EngineHung,
    ExitCode,
    InstallationBroken,
)
from ascendd.supervisor.child_exit import Cause, ChildExit
from ascendd.supervisor.restart import PERMANENT_EXIT_CODES


class FailureClass(enum.Enum):
    """Why a child is started again, or is not."""

    CONFIGURATION = "configuration"  # the same start would fail again: never retried
    MODEL = "model"  # missing, corrupt, too large: never retried
    HOST = "host"  # a port, a right, a check of the host: never retried
    INSTALLATION = "installation"  # a module or library is missing or broken: never retried
    CRASH = "crash"  # a signal, an exception, an exit without a word: backoff, then the end
    HANG = "hang"  # no progress: as a crash, after the device was looked at
    DEVICE_MEMORY = "device_memory"  # the ladder of a smaller KV cache, then the end
    HOST_MEMORY = "host_memory"  # the kernel killed it: as a crash, with advice on memory
    HARDWARE = "hardware"  # the device reported a fault of its own: fewer restarts, after the device was looked at


NEVER_RETRIED = frozenset(
    {FailureClass.CONFIGURATION, FailureClass.MODEL, FailureClass.HOST, FailureClass.INSTALLATION}
)

_BY_EXIT_CODE = {
    ExitCode.USAGE: FailureClass.CONFIGURATION,
    ExitCode.CONFIG: FailureClass.CONFIGURATION,
    ExitCode.MODEL: FailureClass.MODEL,
    ExitCode.PREFLIGHT: FailureClass.HOST,
    ExitCode.HOST: FailureClass.HOST,
}
_BY_FAULT: dict[str, FailureClass] = {
    DeviceOutOfMemory.code: FailureClass.DEVICE_MEMORY,
    DeviceUnavailable.code: FailureClass.HARDWARE,
    DeviceLost.code: FailureClass.HARDWARE,
    DeviceEccError.code: FailureClass.HARDWARE,
    EngineHung.code: FailureClass.HANG,
    CollectiveTimeout.code: FailureClass.HANG,
}


def classify(end: ChildExit) -> FailureClass:
    """
    Return of which class the unasked `end` is.

    A broken installation is told apart from other faults of the host. Else the exit status speaks first, since a class
    of error that is never retried has one of its own; then what the child said of itself, then how it ended.
    """
    if end.fault is not None and end.fault.code == InstallationBroken.code:
        return FailureClass.INSTALLATION
    if end.status in PERMANENT_EXIT_CODES:
        return _BY_EXIT_CODE[ExitCode(end.status)]
    if end.cause is Cause.HUNG:
        return FailureClass.HANG
    if end.fault is not None:
        error = end.fault.to_error()
        if error.permanent:
            return _class_of_permanent(error)
        return _BY_FAULT.get(error.code, FailureClass.CRASH)
    return FailureClass.HOST_MEMORY if end.cause is Cause.HOST_MEMORY else FailureClass.CRASH


def _class_of_permanent(error: AscenddError) -> FailureClass:
    # A mix of two versions (ProtocolMismatch) has the exit code of an engine and yet cannot be cured by a restart.
    return _BY_EXIT_CODE.get(error.exit_code, FailureClass.CONFIGURATION)
