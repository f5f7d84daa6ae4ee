"""
The environment that the service will see, which is not the operator's shell.

For an instance, systemd is asked what the unit sets (Environment=, then each EnvironmentFile=, later ones win);
otherwise this process's own environment is what a command started here would see.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Tuple

from ascendd.errors import ProbeParseError, ProbeUnavailable
from ascendd.host.command import RunCommand
from ascendd.host.files import HostFiles

_TIMEOUT_S = 10.0
_PROPERTIES = (
    "LoadState,ActiveState,Environment,EnvironmentFiles,UnsetEnvironment,ControlGroup,MemoryMax,CPUAffinity,"
    "User,Group,SupplementaryGroups,LimitNOFILE,LimitMEMLOCK,LimitNPROC,TasksMax"
)
# What systemd gives a service that sets nothing.
_DEFAULT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"}
# What systemctl says in a container, and where its manager or bus cannot be reached.
_NO_SYSTEMD = re.compile(r"not been booted with systemd|Failed to connect to (?:system scope )?bus|Failed to get D-Bus")
_FILE_ENTRY = re.compile(r"(?P<path>.+?) \(ignore_errors=(?P<optional>yes|no)\)")


@dataclass(frozen=True)
class ServiceEnvironment:
    """Variables and where they came from. `missing_files` are EnvironmentFile= entries that cannot be read."""

    origin: str
    variables: Mapping[str, str]
    missing_files: Tuple[str, ...] = ()
    is_active: bool = False
    control_group: Optional[str] = None
    memory_max_bytes: Optional[int] = None
    # CPUAffinity= as systemd writes it, `0-23 48`; None where the unit sets none.
    cpu_affinity: Optional[str] = None
    notes: Tuple[str, ...] = field(default=())
    # What else systemd says of the unit, by property; empty where it was not asked.
    properties: Mapping[str, str] = field(default_factory=dict)


def read_service_environment(
    files: HostFiles, run: RunCommand, environ: Mapping[str, str], instance: Optional[str], inside_service: bool = False
) -> ServiceEnvironment:
    """
    Return the environment of ascendd@`instance`, or of this process when none is named or there is no such unit.

    Raises ProbeError where systemd is there and its answer cannot be used: this shell's environment is another one.
    """
    if inside_service:
        return ServiceEnvironment("this service's environment", dict(environ))
    if instance is None:
        return ServiceEnvironment("this shell's environment", dict(environ))
    unit = f"ascendd@{instance}.service"
    try:
        shown = _show(run, environ, unit)
    except ProbeUnavailable as error:
        if not error.facts.get("has_no_unit"):
            raise
        note = f"{unit} could not be asked ({error.message}), so this shell's environment was read instead"
        return ServiceEnvironment("this shell's environment", dict(environ), notes=(note,))
    variables: Dict[str, str] = dict(_DEFAULT)
    for text in shown.get("Environment", []):
        variables.update(_assignments(text))
    missing = []
    for text in shown.get("EnvironmentFiles", []):
        match = _FILE_ENTRY.fullmatch(text)
        path = match["path"] if match else text
        content = files.read_if_possible(path)
        if content is not None:
            variables.update(parse_environment_file(content))
        elif match is None or match["optional"] == "no" or files.exists(path):
            missing.append(path)
    for text in shown.get("UnsetEnvironment", []):
        for name in text.split():
            variables.pop(name.partition("=")[0], None)
    limit = (shown.get("MemoryMax") or ["infinity"])[0]
    return ServiceEnvironment(
        origin=f"the environment of {unit}",
        variables=variables,
        missing_files=tuple(missing),
        is_active=(shown.get("ActiveState") or [""])[0] == "active",
        control_group=(shown.get("ControlGroup") or [""])[0] or None,
        cpu_affinity=",".join((shown.get("CPUAffinity") or [""])[0].split()) or None,
        memory_max_bytes=int(limit) if limit.isdigit() and int(limit) < 1 << 60 else None,
        properties={key: values[0] for key, values in shown.items()},
    )


def parse_environment_file(text: str) -> Dict[str, str]:
    """Parse an EnvironmentFile: KEY=VALUE lines, `#` and `;` comments, quotes, a trailing backslash joins lines."""
    variables = {}
    for line in map(str.strip, re.sub(r"\\\n", "", text).splitlines()):
        key, separator, value = line.partition("=")
        if not separator or line.startswith(("#", ";")) or not re.fullmatch(r"[A-Za-z_]\w*", key.strip()):
            continue
        value = value.strip()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        variables[key.strip()] = value
    return variables


def _show(run: RunCommand, environ: Mapping[str, str], unit: str) -> Dict[str, List[str]]:
    """Ask systemd; every property can come more than once. ProbeError: `has_no_unit` where there is none."""
    try:
        outcome = run(["systemctl", "show", unit, f"--property={_PROPERTIES}"], _TIMEOUT_S, environ)
    except ProbeUnavailable as error:
        raise ProbeUnavailable(error.message, has_no_unit=True) from error
    if outcome.status != 0:
        said = ((outcome.stderr or outcome.stdout).strip().splitlines() or ["no output"])[0]
        raise ProbeUnavailable(f"systemctl: {said}", has_no_unit=bool(_NO_SYSTEMD.search(said)))
    if "LoadState=" not in outcome.stdout or not outcome.stdout.endswith("\n"):
        raise ProbeParseError(f"systemctl show printed no properties of {unit}, or only a part of them")
    shown: Dict[str, List[str]] = {}
    for line in outcome.stdout.splitlines():
        key, separator, value = line.partition("=")
        if separator and value:
            shown.setdefault(key, []).append(value)
    if shown.get("LoadState") != ["loaded"]:
        raise ProbeUnavailable(f"the unit is {(shown.get('LoadState') or ['unknown'])[0]}", has_no_unit=True)
    return shown


def _assignments(text: str) -> Dict[str, str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ProbeParseError(f"systemctl show printed an Environment that cannot be split: {error}") from error
    return {key: value for key, separator, value in (word.partition("=") for word in words) if separator}
