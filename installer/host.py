"""Host: the machine that is installed, its files, its tools, and the one log that everything goes to."""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Callable, Dict, Mapping, Optional, Sequence, Tuple

from ascendd.errors import HostError
from ascendd.host.files import HostFiles
from ascendd.host.version_files import parse_pairs

LOG_FOLDER = "/var/log/ascendd-installer"
STATE_FOLDER = "/var/lib/ascendd-installer"
# A line of progress this often while a command runs.
_PULSE_S = 15.0


class Host:
    """
    One machine below `root`; every path is given as the machine itself sees it.

    Another root than `/` is for tests and images: files are written below it, while commands are found on PATH.
    """

    def __init__(self, root: str = "/", environ: Optional[Mapping[str, str]] = None) -> None:
        self.files = HostFiles(root)
        self.environ: Dict[str, str] = dict(os.environ if environ is None else environ)
        # A descriptor that commands inherit: while one of them lives, the lock is held.
        self.lock_descriptor: Optional[int] = None
        # Set when a command was left behind alive: what it reads from must stay.
        self.has_left_command = False
        self.say: Callable[[str], None] = lambda line: print(line, flush=True)  # noqa: T201 - a command line tool

    def real(self, path: str) -> str:
        """Return the path to hand to the operating system."""
        return self.files.real(path)

    @property
    def architecture(self) -> str:
        """x86_64 or aarch64, as the kernel names itself; `arm64` of other tools counts as aarch64."""
        machine = self.environ.get("ASCENDD_INSTALL_MACHINE") or platform.machine()
        return {"arm64": "aarch64", "amd64": "x86_64"}.get(machine, machine)

    @property
    def system(self) -> Dict[str, str]:
        """The pairs of /etc/os-release."""
        text = self.files.read_optional("/etc/os-release") or self.files.read_optional("/usr/lib/os-release")
        return parse_pairs(text or "")

    @property
    def boot_id(self) -> str:
        """The identity of this boot; another after every reboot."""
        return (self.files.read_optional("/proc/sys/kernel/random/boot_id") or "").strip()

    @property
    def has_systemd(self) -> bool:
        """Whether systemd runs this machine; it does not while an image is made."""
        return self.files.is_dir("/run/systemd/system")

    def find(self, command: str) -> Optional[str]:
        """Return the path of `command` on PATH, or None."""
        return shutil.which(command, path=self.environ.get("PATH"))

    def account(self, database: str, name: str) -> Optional[Tuple[str, ...]]:
        """Return the fields of `name` in `passwd` or `group`, or None."""
        for line in (self.files.read_optional("/etc/" + database) or "").splitlines():
            fields = tuple(line.split(":"))
            if fields[0] == name:
                return fields
        return None

    def free_bytes(self, path: str) -> int:
        """Return the free space where `path` is or would be."""
        place = Path(self.real(path))
        while not place.exists():
            place = place.parent
        return shutil.disk_usage(place).free

    def log(self, text: str) -> None:
        """Append one line with the time to the log."""
        with self._open_log() as log:
            log.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text}\n".encode())

    def run(self, argv: Sequence[str], accepts: Sequence[int], limit_s: float) -> None:
        """
        Run `argv` with its output in the log. Raises HostError when it cannot start or ends with another status.

        A command that is late is not killed: a firmware update that is cut off can cost the card. It goes on, holds the
        lock, and `resume` waits for it. For the same reason its output goes to a file and never into a pipe of ours.
        """
        shown = shlex.join(argv)
        self.log(f"$ {shown}")
        started = time.monotonic()
        with self._open_log() as log:
            try:
                process = subprocess.Popen(
                    list(argv),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self.environ,
                    start_new_session=True,
                    pass_fds=[] if self.lock_descriptor is None else [self.lock_descriptor],
                )
            except OSError as error:
                raise HostError(f"{argv[0]} cannot be started: {error.strerror or error}", command=shown) from error
        status = None
        while status is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(_PULSE_S)
            passed = time.monotonic() - started
            if status is None and passed > limit_s:
                self.has_left_command = True
                raise HostError(
                    f"`{shown}` still runs after {passed:.0f} s; it was not killed",
                    remedy="Look at the end of the log; `resume` waits for the command to end and goes on.",
                    pid=process.pid,
                )
            if status is None:
                self.say(f"      still running after {passed:.0f} s")
        self.log(f"exit status {status} after {time.monotonic() - started:.1f} s")
        if status not in accepts:
            raise HostError(
                f"`{shown}` ended with status {status}, wanted {' or '.join(map(str, accepts))}",
                remedy=f"Read the end of {LOG_FOLDER}/install.log, remove the cause, and run `resume`.",
                status=status,
            )

    def _open_log(self) -> IO[bytes]:
        path = Path(self.real(LOG_FOLDER + "/install.log"))
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        return path.open("ab")


def write_atomic(path: str, data: bytes, mode: int = 0o644) -> None:
    """Write a file that is either the old or the new one at every moment, also after a power cut."""
    target = Path(path)
    partial = target.with_name(f".{target.name}.ascendd-new")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        partial.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    sync_folder(str(target.parent))


def sync_folder(path: str) -> None:
    """Make renames in a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def bundle_folder() -> str:
    """Return the folder that was unpacked: the one that holds this package."""
    return str(Path(__file__).resolve().parent.parent)


assert sys.version_info >= (3, 9), "the installer needs Python 3.9 or newer; start it with ./install.sh"
