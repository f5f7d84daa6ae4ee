"""
The support archive, `ascendd doctor --bundle FILE`: the report and what explains it, for whoever helps from afar.

Everything is masked (secrets_mask), each file is cut to its last MAX_FILE_BYTES, the whole is bounded, and MANIFEST.txt
says what is in it and what was left out. Key files, weights and prompts are never among it. Stdlib only.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ascendd.errors import PermissionMissing, ProbeError, UsageError
from ascendd.host.files import HostFiles
from ascendd.host.version_files import INSTALL_INFO, INSTALL_LOGS, read_cann, read_driver, read_firmware
from ascendd.preflight.context import CheckContext
from ascendd.preflight.secrets_mask import mask

MAX_FILE_BYTES = 1 << 20
# Of the content, before it is compressed.
MAX_BYTES = 20 << 20
_TIMEOUT_S = 20.0
_FILES = (
    "/etc/os-release", "/proc/meminfo", "/proc/cpuinfo", "/proc/cmdline", "/proc/modules", "/proc/self/limits",
    "/proc/sys/net/ipv4/ip_local_reserved_ports", "/etc/ascendd/policy.json", "/etc/ascendd/cann.env", INSTALL_INFO,
    *INSTALL_LOGS,
)  # fmt: skip
_FOLDERS = (("/etc/ascendd/instances", "*.yaml"), ("/var/log/ascendd", "*.log"))
_COMMANDS: Tuple[Tuple[str, ...], ...] = (
    ("npu-smi", "info"),
    ("npu-smi", "info", "-t", "topo"),
    ("uname", "-a"),
    ("lspci", "-n", "-d", "19e5:"),
    ("df", "-h"),
    ("ps", "-eo", "pid,ppid,user,stat,etime,rss,comm"),
    ("systemctl", "list-units", "--no-pager", "--all", "ascendd*"),
    ("journalctl", "-k", "-b", "-n", "2000", "--no-pager"),
)


def write_archive(target: Path, report: Mapping[str, Any], context: CheckContext) -> List[str]:
    """
    Write the archive, readable by its owner only, and return the names in it.

    Raises UsageError where `target` exists already and PermissionMissing where it cannot be written.
    """
    content: Dict[str, str] = {"report.json": json.dumps(report, indent=2, ensure_ascii=False)}
    notes: List[str] = []
    content["environment.txt"] = "".join(f"{key}={value}\n" for key, value in sorted(context.environ.items()))
    for path in _paths(context):
        _take(context.files, path, content, notes)
    commands = [*_COMMANDS]
    if context.request.instance is not None:
        unit = f"ascendd@{context.request.instance}.service"
        commands += [("systemctl", "show", unit), ("journalctl", "-u", unit, "-n", "5000", "--no-pager")]
    for argv in commands:
        name = f"commands/{'_'.join(argv).replace('/', '-')}.txt"
        try:
            outcome = context.run(argv, _TIMEOUT_S, context.environ)
        except ProbeError as error:
            notes.append(f"{name}: {error.message}")
            continue
        content[name] = f"$ {' '.join(argv)}\nexit status {outcome.status}\n{outcome.stdout}{outcome.stderr}"
    return _pack(target, content, notes)


def _paths(context: CheckContext) -> List[str]:
    files = context.files
    paths = [*_FILES, read_driver(files).path, read_firmware(files).path]
    for toolkit in read_cann(files, context.environ):
        paths += [
            f"{toolkit.root}/version.cfg",
            f"{toolkit.root}/{toolkit.architecture}-linux/ascend_toolkit_install.info",
        ]
    for folder, pattern in _FOLDERS:
        paths += [f"{folder}/{name}" for name in files.list_if_possible(folder, pattern)]
    return list(dict.fromkeys(paths))


def _take(files: HostFiles, path: str, content: Dict[str, str], notes: List[str]) -> None:
    """Read the end of a file, however long it is."""
    try:
        with Path(files.real(path)).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - MAX_FILE_BYTES))
            data = file.read(MAX_FILE_BYTES)
            if size == 0:  # /proc has no sizes
                file.seek(0)
                data = file.read(MAX_FILE_BYTES)
    except OSError as error:
        notes.append(f"{path}: {error.strerror or error}")
        return
    if size > MAX_FILE_BYTES:
        notes.append(f"{path}: the last {MAX_FILE_BYTES >> 20} MiB of {size} bytes")
    content[f"files{path}"] = data.decode("utf-8", "replace")


def _pack(target: Path, content: Mapping[str, str], notes: List[str]) -> List[str]:
    packed: Dict[str, bytes] = {}
    room = MAX_BYTES
    for name, text in content.items():
        data = mask(text).encode()[-MAX_FILE_BYTES:]
        if len(data) > room:
            notes.append(f"{name}: left out, the archive has its {MAX_BYTES >> 20} MiB")
            continue
        room -= len(data)
        packed[name] = data
    lines = [*sorted(packed), "", "left out or cut:", *(notes or ["nothing"])]
    packed["MANIFEST.txt"] = mask("\n".join(lines)).encode() + b"\n"
    _write(target, packed)
    return sorted(packed)


def _write(target: Path, packed: Mapping[str, bytes]) -> None:
    problem: Optional[OSError] = None
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise UsageError(f"--bundle {target} exists already; name a file that does not") from error
    except OSError as error:
        problem = error
    if problem is not None:
        raise PermissionMissing(
            f"--bundle {target} cannot be written: {problem.strerror}", remedy="Name a file in a folder that is there."
        )
    with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name in sorted(packed):
            entry = tarfile.TarInfo(f"ascendd-support/{name}")
            entry.size, entry.mtime, entry.mode = len(packed[name]), int(time.time()), 0o600
            archive.addfile(entry, io.BytesIO(packed[name]))
