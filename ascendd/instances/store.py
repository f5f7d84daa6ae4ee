"""
The files of instances: made, replaced and removed so that an instance is there as a whole or not at all.

    /etc/ascendd/instances/NAME.yaml                            0640 root:ascendd, written last
    /etc/ascendd/keys/NAME                                      0600 ascendd:ascendd, where the API wants keys
    /etc/systemd/system/ascendd@NAME.service.d/50-devices.conf  0644, see host.drop_in
"""

from __future__ import annotations

import contextlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from ascendd.errors import ConfigFileMissing, HostError, PermissionMissing, UsageError
from ascendd.host.account import read_account
from ascendd.host.drop_in import drop_in_path
from ascendd.host.files import HostFiles

INSTANCES = "/etc/ascendd/instances"
KEYS = "/etc/ascendd/keys"
SERVICE = "ascendd"


@dataclass(frozen=True, slots=True)
class InstanceFiles:
    """What is written for one instance; `new_key`: a key is made where none is there yet."""

    config: str
    drop_in: str
    new_key: bool = False


class InstanceStore:
    """The instances of the host `files`; another root than `/` is a fake host or an image."""

    def __init__(self, files: HostFiles) -> None:
        self._files = files

    def names(self) -> list[str]:
        """Return the names of all instances."""
        return [name.removesuffix(".yaml") for name in self._files.list_dir(INSTANCES, "*.yaml")]

    def path(self, name: str) -> Path:
        """Return the path of the instance's file. Raises UsageError where that is no name of an instance."""
        drop_in_path(name)
        return Path(self._files.real(f"{INSTANCES}/{name}.yaml"))

    def read(self, name: str) -> str:
        """Return the text of the instance's file. Raises ConfigFileMissing, PermissionMissing."""
        try:
            return self.path(name).read_text(encoding="utf-8")
        except FileNotFoundError:
            there = ", ".join(self.names()) or "none"
            raise ConfigFileMissing(
                f"there is no instance {name}; instances here: {there}",
                remedy=f"Name one of them, or make it: ascendd instance create {name} --model PATH.",
            ) from None
        except OSError as error:
            raise _refused(error) from error

    def write(self, name: str, wanted: InstanceFiles) -> None:
        """
        Write key, drop-in and, last, the file. What this call made goes again where it does not come to its end.

        Raises PermissionMissing, HostError.
        """
        config, drop_in = self.path(name), Path(self._files.real(drop_in_path(name)))
        key = Path(self._files.real(f"{KEYS}/{name}"))
        made: list[Path] = []
        account = read_account(self._files, SERVICE)
        owner = (account.uid, account.gid) if account is not None else (-1, -1)
        try:
            if wanted.new_key and not key.exists():
                made.append(key)
                _replace(key, f"# Keys of instance {name}, one a line.\n{secrets.token_urlsafe(32)}\n", 0o600, owner)
            if not drop_in.exists():
                made.append(drop_in)
            _replace(drop_in, wanted.drop_in, 0o644, (-1, -1))
            _replace(config, wanted.config, 0o640, (-1, owner[1]))
        except BaseException as error:
            for path in made:
                with contextlib.suppress(OSError):
                    path.unlink()
            with contextlib.suppress(OSError):
                drop_in.parent.rmdir()
            if isinstance(error, OSError):
                raise _refused(error) from error
            raise

    def delete(self, name: str) -> list[str]:
        """Remove the instance's files and return their paths; what `systemctl edit` wrote stays, so does the model."""
        self.read(name)
        drop_in = drop_in_path(name)
        removed = []
        try:
            # The file goes first: without it there is no instance, whatever else is left.
            for path in (f"{INSTANCES}/{name}.yaml", f"{KEYS}/{name}", drop_in):
                with contextlib.suppress(FileNotFoundError):
                    Path(self._files.real(path)).unlink()
                    removed.append(path)
        except OSError as error:
            raise _refused(error) from error
        with contextlib.suppress(OSError):
            Path(self._files.real(drop_in)).parent.rmdir()
        return removed


def key_path(name: str) -> str:
    """Return the path of the key file of an instance."""
    return f"{KEYS}/{name}"


def hidden_from_service(path: str) -> str | None:
    """Return why the hardened unit cannot see `path`, None where it can."""
    for folder, why in (
        ("/home", "ProtectHome"), ("/root", "ProtectHome"), ("/run/user", "ProtectHome"),
        ("/tmp", "PrivateTmp"), ("/var/tmp", "PrivateTmp"),  # noqa: S108 - named, not used
    ):  # fmt: skip
        if Path(path).is_relative_to(folder):
            return f"the unit hides {folder} from the service ({why})"
    return None


def _replace(path: Path, text: str, mode: int, owner: tuple[int, int]) -> None:
    """Replace a file whole; its mode and owner are right before it has its name."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.new")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            if os.geteuid() == 0 and owner != (-1, -1):
                os.fchown(file.fileno(), *owner)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _refused(error: OSError) -> PermissionMissing | HostError:
    said = f"{error.filename}: {error.strerror}"
    if isinstance(error, PermissionError):
        return PermissionMissing(
            f"instances are changed by root only: {said}", remedy="Run the same command with sudo."
        )
    return HostError(f"an instance's file cannot be written: {said}")


def require_new(store: InstanceStore, name: str) -> None:
    """Raise UsageError where there is an instance of that name."""
    if store.path(name).exists():
        raise UsageError(
            f"instance {name} is there already: {store.path(name)}",
            remedy=f"Change it with `ascendd instance edit {name}`, or take another name.",
        )
