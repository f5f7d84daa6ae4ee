"""The account of the service: its groups, and what it may open, tried as that account where this process may."""

from __future__ import annotations

import grp
import json
import os
import pwd
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from ascendd.host.files import HostFiles

_TIMEOUT_S = 10.0
# Becomes the account, then opens each path for reading and writing, one that ends with `::r` only for reading. It is
# root that starts it: an interpreter in somebody's home is none that the account could start.
_OPEN = """
import json, os, sys
uid, gid, groups = json.loads(sys.argv[1])
os.setgroups(groups)
os.setresgid(gid, gid, gid)
os.setresuid(uid, uid, uid)
said = {}
for path in sys.argv[2:]:
    name, _, reading = path.partition("::")
    try:
        os.close(os.open(name, (os.O_RDONLY if reading else os.O_RDWR) | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        said[name] = error.strerror or str(error)
print(json.dumps(said))
"""


@dataclass(frozen=True)
class Account:
    """A user of the host with its primary group's id and the names and ids of all its groups."""

    name: str
    uid: int
    gid: int
    groups: Tuple[str, ...]
    group_ids: Tuple[int, ...]


def read_account(files: HostFiles, name: str, supplementary: Sequence[str] = ()) -> Optional[Account]:
    """Return the user `name` with its groups and those of `supplementary` that exist; None where there is no such."""
    found = _from_files(files, name) if files.root else _from_system(name)
    if found is None:
        return None
    uid, gid, groups = found
    for group in supplementary:
        known = group_id(files, group)
        if known is not None:
            groups[group] = known
    return Account(name, uid, gid, tuple(sorted(groups)), tuple(groups[group] for group in sorted(groups)))


def group_id(files: HostFiles, name: str) -> Optional[int]:
    """Return the id of a group, or None."""
    if files.root:
        rows = [row for row in _rows(files, "/etc/group") if row[0] == name and len(row) > 2]
        return int(rows[0][2]) if rows else None
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def refused(files: HostFiles, account: Account, devices: Sequence[str], folders: Sequence[str] = ()) -> Dict[str, str]:
    """
    Return path -> reason for each of `devices` that `account` may not read and write, and of `folders` not read.

    As root the paths are opened by a child process that is this account; otherwise owner, group and mode decide.
    """
    if files.fake is not None:
        denied = (files.fact("denied_to") or {}).get(account.name, {})
        said = {path: str(denied[path]) for path in [*devices, *folders] if path in denied}
        return {**_by_mode(files, account, devices), **said}
    if os.geteuid() == 0:
        return _by_opening(account, devices, folders)
    return _by_mode(files, account, devices)


def _by_opening(account: Account, devices: Sequence[str], folders: Sequence[str]) -> Dict[str, str]:
    words = [*devices, *(f"{folder}::r" for folder in folders)]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _OPEN, json.dumps([account.uid, account.gid, account.group_ids]), *words],
        check=False,
        capture_output=True,
        timeout=_TIMEOUT_S,
        cwd="/",
    )
    if done.returncode:
        # A container may keep even root from becoming somebody else; the modes still tell something.
        return _by_mode(HostFiles(), account, devices)
    refusals: Dict[str, str] = json.loads(done.stdout)
    return refusals


def _by_mode(files: HostFiles, account: Account, devices: Sequence[str]) -> Dict[str, str]:
    said = {}
    for path in devices:
        found = _owner(files, path)
        if found is None or account.uid == 0:
            continue
        uid, gid, mode = found
        wanted = stat.S_IRUSR | stat.S_IWUSR
        if account.uid != uid:
            wanted >>= 3 if gid == account.gid or gid in account.group_ids else 6
        if mode & wanted != wanted:
            said[path] = "Permission denied"
    return said


def _owner(files: HostFiles, path: str) -> Optional[Tuple[int, int, int]]:
    """Return owner, group and mode; a fake host's are in its fact `owners`, since its files are the tester's."""
    if files.fake is not None:
        said = (files.fact("owners") or {}).get(path)
        return None if said is None else (int(said[0]), int(said[1]), int(str(said[2]), 8))
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)


def _from_system(name: str) -> Optional[Tuple[int, int, Dict[str, int]]]:
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        return None
    groups = {}
    for gid in os.getgrouplist(name, user.pw_gid):
        try:
            groups[grp.getgrgid(gid).gr_name] = gid
        except KeyError:
            groups[str(gid)] = gid
    return user.pw_uid, user.pw_gid, groups


def _from_files(files: HostFiles, name: str) -> Optional[Tuple[int, int, Dict[str, int]]]:
    user = next((row for row in _rows(files, "/etc/passwd") if row[0] == name and len(row) > 3), None)
    if user is None:
        return None
    gid = int(user[3])
    rows = [row for row in _rows(files, "/etc/group") if len(row) > 3]
    groups = {row[0]: int(row[2]) for row in rows if int(row[2]) == gid or name in row[3].split(",")}
    return int(user[2]), gid, groups


def _rows(files: HostFiles, path: str) -> List[List[str]]:
    lines = (files.read_optional(path) or "").splitlines()
    return [line.split(":") for line in lines if line and not line.startswith("#")]
