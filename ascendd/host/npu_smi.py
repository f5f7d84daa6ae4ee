"""
Find and run npu-smi, and tell its failures apart.

The tool initialises the driver interface for every sub-command, even `-v`; it prints failures to standard output, and
its negative return code reaches the shell as one byte (-8005 as 187). It can hang with the device, so every call has
a limit.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Callable, Dict, Hashable, Iterable, List, Mapping, Optional, TypeVar, Union

from ascendd.errors import ProbeError, ProbeParseError, ProbeUnavailable
from ascendd.host.command import CommandOutcome, RunCommand
from ascendd.host.files import HostFiles
from ascendd.host.npu_smi_table import NpuSmiReport, parse_info
from ascendd.host.npu_topology import NpuTopology, parse_topology
from ascendd.host.vendor_facts import describe_code, load_facts

CALL_TIMEOUT_S = 20.0
# Calls at the same time: one a chip in turn takes seconds on a server of eight; each call loads the driver's interface.
MAX_CALLS = 8
_Id = TypeVar("_Id", bound=Hashable)
_Answer = TypeVar("_Answer")
USUAL_PLACES = ("/usr/local/bin/npu-smi", "/usr/local/sbin/npu-smi", "/usr/bin/npu-smi")
_RETURN_CODE = re.compile(r"\bret(?: is|=)\s*(-\d+)")
_FAILURE = re.compile(r"failed|not found|There is no NPU card|does not support", re.IGNORECASE)
# Printed by the driver library before anything else when it cannot read the log level; says nothing of the call itself.
_NOISE = re.compile(r"^DrvMngGetConsoleLogLevel failed")


@dataclass(frozen=True)
class NpuSmi:
    """One npu-smi on this host. All methods run it once and raise ProbeTimeout, ProbeUnavailable or ProbeParseError."""

    path: str
    run: RunCommand
    environ: Mapping[str, str]
    timeout_s: float = CALL_TIMEOUT_S

    def info(self) -> NpuSmiReport:
        """Return the chips, processes and versions of `npu-smi info`."""
        return parse_info(self._query("info"))

    def topology(self) -> NpuTopology:
        """Return how the chips reach each other: `npu-smi info -t topo`."""
        return parse_topology(self._query("info", "-t", "topo"))

    def board(self, npu_id: int) -> Dict[str, str]:
        """Return the fields of `npu-smi info -t board`: Software Version, Firmware Version, Compatibility, ..."""
        return parse_fields(self._query("info", "-t", "board", "-i", str(npu_id)))

    def ecc(self, npu_id: int) -> Dict[int, Dict[str, int]]:
        """Return the error counters of `npu-smi info -t ecc` by chip id, of each chip at least one of double bits."""
        chips: Dict[int, Dict[str, int]] = {}
        counters: Dict[str, int] = {}
        text = self._query("info", "-t", "ecc", "-i", str(npu_id))
        for key, value in _pairs(text):
            if "Bit" in key and value.isdigit():
                counters[key] = int(value)
            elif key == "Chip ID" and value.isdigit():  # closes the block of a chip
                chips[int(value)], counters = counters, {}
        # No counter is not a counter of zero.
        if not chips or not all(any("Double Bit" in key for key in found) for found in chips.values()):
            said = "npu-smi printed no counters of double-bit errors"
            raise ProbeParseError(said, output=text[:2000])
        return chips

    def health_codes(self, npu_id: int, chip_id: int) -> Dict[str, str]:
        """Return the fields of `npu-smi info -t health`: Health Status, Error Code, Error Information."""
        return parse_fields(self._query("info", "-t", "health", "-i", str(npu_id), "-c", str(chip_id)))

    def _query(self, *arguments: str) -> str:
        outcome = self.run([self.path, *arguments], self.timeout_s, self.environ)
        raise_failure(outcome)
        return outcome.stdout


def ask_each(ids: Iterable[_Id], question: Callable[[_Id], _Answer]) -> Dict[_Id, Union[_Answer, ProbeError]]:
    """Ask one question about each id, a few at a time; what cannot be had is the error in its place."""

    def ask(one: _Id) -> Union[_Answer, ProbeError]:
        try:
            return question(one)
        except ProbeError as error:
            return error

    wanted = list(ids)
    with ThreadPoolExecutor(MAX_CALLS) as pool:
        return dict(zip(wanted, pool.map(ask, wanted)))


def find_npu_smi(files: HostFiles, environ: Mapping[str, str]) -> str:
    """Return the path to execute. Raises ProbeUnavailable, naming a folder that stands where the tool should be."""
    places = [
        folder.rstrip("/") + "/npu-smi" for folder in environ.get("PATH", "").split(":") if folder.startswith("/")
    ]
    places += [place for place in USUAL_PLACES if place not in places]
    for place in places:
        if files.is_executable(place):
            return files.real(place)
    folder = next((place for place in places if files.is_dir(place)), None)
    if folder is not None:
        raise ProbeUnavailable(
            f"{folder} is a folder, not the tool: a container mount named a source that did not exist",
            remedy=f"Mount the host's npu-smi file and recreate the container; `ls -ld {folder}` then shows a file.",
            path=folder,
        )
    raise ProbeUnavailable(
        f"npu-smi is neither on PATH nor at {USUAL_PLACES[0]}: the driver is not installed, "
        "or not mounted into this container"
    )


def raise_failure(outcome: CommandOutcome) -> None:
    """Raise ProbeUnavailable (facts: dcmi_code, status, output) when the tool did not do what it was asked."""
    output = _without_noise(outcome.stdout)
    loader = next(
        (line for line in outcome.stderr.splitlines() if "error while loading shared libraries" in line), None
    )
    if outcome.status == 127 and loader is None and "shared libraries" in outcome.stdout:
        loader = output
    if loader is not None:
        raise ProbeUnavailable(
            f"npu-smi cannot start: {loader.split('shared libraries: ')[-1].strip()}",
            remedy="Put lib64, lib64/common and lib64/driver of the driver into LD_LIBRARY_PATH.",
            status=outcome.status,
        )
    match = _RETURN_CODE.search(output)
    is_table = output.lstrip().startswith("+")
    code = int(match[1]) if match and not is_table else _code_of_status(outcome.status)
    if code is not None:
        known = describe_code("dcmi_codes", code) or {}
        raise ProbeUnavailable(
            f"npu-smi: {_first_line(output)} ({known.get('name', 'unknown code')} {code})",
            remedy=known.get("remedy"),
            dcmi_code=code,
            cause=known.get("cause"),
            status=outcome.status,
        )
    if outcome.status != 0 or (not is_table and _FAILURE.search(_first_line(output))):
        said = _first_line(output) or _first_line(outcome.stderr) or "nothing"
        raise ProbeUnavailable(f"npu-smi said: {said} (exit status {outcome.status})", status=outcome.status)


def parse_fields(text: str) -> Dict[str, str]:
    """Parse `key : value` lines; a line with a blank key continues the value above it; the first of equal keys wins."""
    fields: Dict[str, str] = {}
    last: Optional[str] = None
    for key, value in _pairs(text):
        if key:
            last = key if key not in fields else None
            fields.setdefault(key, value)
        elif last is not None:
            fields[last] += "; " + value
    return fields


def _pairs(text: str) -> List[tuple[str, str]]:
    pairs = []
    for line in text.splitlines():
        key, separator, value = line.partition(" : ")
        if separator:
            pairs.append((key.strip(), value.strip()))
    return pairs


def _code_of_status(status: int) -> Optional[int]:
    """Return the return code whose lowest byte is `status`, where the text did not name it."""
    codes = [row["code"] for row in load_facts("dcmi_codes")["codes"]]
    return next((code for code in codes if status and code & 0xFF == status), None)


def _without_noise(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not _NOISE.match(line))


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
