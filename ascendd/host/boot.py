"""When the host was started, when vendor packages were installed, and what asks for a restart."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Optional, Tuple

from ascendd.errors import ProbeParseError
from ascendd.host.files import HostFiles
from ascendd.host.version_files import INSTALL_LOGS

# `[Driver] [2024-11-02 10:20:11] [INFO] ./Ascend-hdk-910b-npu-driver_24.1.rc3_linux-aarch64.run --full`
_INSTALLED = re.compile(
    r"\[(Driver|Firmware)\]\s*\[(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\]"
    r".*?\b(Ascend-hdk-\S+\.run)\b.*?--(?:full|upgrade|install)\b",
    re.IGNORECASE,
)
# Any line that the installer writes: `[Driver] [2024-11-02 10:20:11] [INFO] ...`, with or without the first brackets.
_LINE = re.compile(r"\[?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\]?")
# What package managers leave behind when a kernel or a library wants a restart.
_REQUESTS = ("/var/run/reboot-required", "/run/reboot-required")


@dataclass(frozen=True)
class Installation:
    """One package that the vendor's installer logged; `when_s` is Unix time, by the host's own clock."""

    kind: str
    package: str
    when_s: float
    date: str


def boot_time_s(files: HostFiles) -> float:
    """Return when the host was started, Unix time. Raises ProbeUnavailable or ProbeParseError."""
    match = re.match(r"(\d+(?:\.\d+)?) ", files.read_text("/proc/uptime"))
    if match is None:
        raise ProbeParseError("/proc/uptime holds no number")
    now = files.fact("now_s")
    return (time.time() if now is None else float(now)) - float(match[1])


def read_installations(files: HostFiles) -> Tuple[Installation, ...]:
    """
    Return the driver and firmware packages of the installer's logs, oldest first; none where there is no log.

    Raises ProbeUnavailable, and ProbeParseError for a log without one line of the installer. An empty one was rotated.
    """
    found = []
    for log in INSTALL_LOGS:
        text = files.read_optional(log) or ""
        if text.strip() and not _LINE.search(text):
            raise ProbeParseError(f"{log} is no log of the vendor's installer", path=log)
        for match in _INSTALLED.finditer(text):
            try:
                when_s = time.mktime(time.strptime(" ".join(match.group(2, 3, 4, 5, 6, 7)), "%Y %m %d %H %M %S"))
            except (ValueError, OverflowError):
                continue
            found.append(Installation(match[1].lower(), match[8], when_s, "-".join(match.group(2, 3, 4))))
    return tuple(sorted(set(found), key=lambda one: one.when_s))


def restart_request(files: HostFiles) -> Optional[str]:
    """Return the file by which a package manager asks for a restart, or None."""
    return next((path for path in _REQUESTS if files.exists(path)), None)
