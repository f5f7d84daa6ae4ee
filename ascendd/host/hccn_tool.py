"""
hccn_tool: the network ports of the chips. Read-only `-g` questions; a chip is named by its physical id.

The tool prints failures as sentences, mostly with a status of 0, so the words decide. The 950 asks for a die and a port
more, and answers one line a port.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Tuple

from ascendd.errors import ProbeError, ProbeParseError, ProbeUnavailable
from ascendd.host.command import RunCommand
from ascendd.host.files import HostFiles
from ascendd.host.version_files import driver_tool

CALL_TIMEOUT_S = 10.0
# Every state that the tool can print; `Init` is normal where no address to detect is configured.
NET_HEALTH_WORDS = (
    "Success", "Socket fail", "Receive timeout", "Unreachable", "Time exceeded", "Fault", "Init", "Thread error",
    "Detect ip set", "Unknown",
)  # fmt: skip
LINK_WORDS = ("UP", "DOWN", "PARTIAL LINK", "PARTIAL UP")
NO_ADDRESS = re.compile(r"no ip was preset there")
_FAILURE = re.compile(
    r"Command execute failed|Cmd execute failed|The device is not exist|The cmd line execute timeout"
    r"|Optical module is not present|Get lock failed|Execute failed:|can't access|Get \w+ failed"
)
_LINE = re.compile(r"^\s*(?:\[device \d+\])?\s*([^:]+?)\s*:\s*(.*?)\s*$")


@dataclass(frozen=True)
class PortLinks:
    """State of a chip's link, and of each port where the tool lists them (950)."""

    state: str
    ports: Tuple[Tuple[int, str], ...] = ()


@dataclass(frozen=True)
class HccnTool:
    """One hccn_tool. Methods run it once and raise ProbeTimeout, ProbeUnavailable or ProbeParseError."""

    path: str
    run: RunCommand
    environ: Mapping[str, str]
    timeout_s: float = CALL_TIMEOUT_S

    def link(self, phy_id: int) -> PortLinks:
        """Return the link of a chip."""
        return parse_link(self._ask(phy_id, "-link"))

    def net_health(self, phy_id: int) -> str:
        """Return one of NET_HEALTH_WORDS."""
        return parse_net_health(self._ask(phy_id, "-net_health"))

    def address(self, phy_id: int) -> Optional[Tuple[str, str]]:
        """Return address and netmask of a chip, None where it has none."""
        return parse_address(self._ask(phy_id, "-ip"))

    def tls_is_on(self, phy_id: int) -> bool:
        """Tell whether the chip talks TLS to chips of other servers; they must all agree."""
        return parse_tls(self._ask(phy_id, "-tls"))

    def _ask(self, phy_id: int, question: str) -> str:
        outcome = self.run([self.path, "-i", str(phy_id), question, "-g"], self.timeout_s, self.environ)
        text = outcome.stdout
        if outcome.status != 0 and not _FAILURE.search(text):
            said = (text.strip() or outcome.stderr.strip() or "nothing").splitlines()[0]
            raise ProbeUnavailable(f"hccn_tool said: {said} (exit status {outcome.status})", status=outcome.status)
        return text


def find_hccn_tool(files: HostFiles) -> Optional[str]:
    """Return the path to execute; None where there is none, as on cards without network ports."""
    return driver_tool(files, "hccn_tool")


def raise_failure(text: str) -> None:
    """Raise ProbeUnavailable where the tool said that it could not."""
    match = _FAILURE.search(text)
    if match is not None:
        line = next(line for line in text.splitlines() if match[0] in line)
        raise ProbeUnavailable(f"hccn_tool said: {line.strip()}", is_refusal=True)


def is_without(error: ProbeError) -> bool:
    """Tell whether the tool itself said that it has no answer, as for a card without that function."""
    return bool(error.facts.get("is_refusal"))


def parse_link(text: str) -> PortLinks:
    """Parse `link status: UP`, with `port N : UP` lines on a 950."""
    raise_failure(text)
    fields = _fields(text)
    state = fields.get("link status", "")
    ports = [(int(key.split()[1]), value) for key, value in fields.items() if re.fullmatch(r"port \d+", key)]
    if state not in LINK_WORDS or any(word not in LINK_WORDS for _, word in ports):
        raise _unknown("-link", text)
    return PortLinks(state, tuple(sorted(ports)))


def parse_net_health(text: str) -> str:
    """Parse `net health status: Success`."""
    raise_failure(text)
    state = _fields(text).get("net health status", "")
    if state not in NET_HEALTH_WORDS:
        raise _unknown("-net_health", text)
    return state


def parse_tls(text: str) -> bool:
    """Parse `tls switch[0](0:disable, 1:enable)`."""
    raise_failure(text)
    match = re.search(r"tls switch\s*\[([01])\]", text)
    if match is None:
        raise _unknown("-tls", text)
    return match[1] == "1"


def parse_address(text: str) -> Optional[Tuple[str, str]]:
    """Parse `ipaddr:A` and `netmask:B`; None where no address is set, which one server alone does not need."""
    if NO_ADDRESS.search(text):
        return None
    raise_failure(text)
    fields = _fields(text)
    if not fields.get("ipaddr") or not fields.get("netmask"):
        raise _unknown("-ip", text)
    return fields["ipaddr"], fields["netmask"]


def parse_counters(text: str) -> Dict[str, int]:
    """Parse the packet counters of `-stat`."""
    raise_failure(text)
    counters = {key: int(value) for key, value in _fields(text).items() if value.isascii() and value.isdigit()}
    if not counters:
        raise _unknown("-stat", text)
    return counters


def parse_link_changes(text: str) -> Tuple[int, Tuple[str, ...]]:
    """Parse `-link_stat`: how often the link came up, and the changes, latest first (`... LINK DOWN`)."""
    raise_failure(text)
    count = _fields(text).get("link up count", "")
    if not count.isdigit():
        raise _unknown("-link_stat", text)
    changes = re.findall(r"^\s*(?:\[device \d+\])?\s*(\w{3} \w{3} .*LINK (?:UP|DOWN))\s*$", text, re.MULTILINE)
    return int(count), tuple(" ".join(change.split()) for change in changes)


def parse_fec(text: str) -> str:
    """Parse `fec mode: rs FEC mode`."""
    raise_failure(text)
    mode = _fields(text).get("fec mode", "")
    if not mode:
        raise _unknown("-fec", text)
    return mode


def parse_optical(text: str) -> Dict[str, str]:
    """Parse the readings of an optical module; ProbeUnavailable where none is plugged in."""
    raise_failure(text)
    fields = {key: value for key, value in _fields(text).items() if value}
    if "present" not in fields:
        raise _unknown("-optical", text)
    return fields


def _fields(text: str) -> Dict[str, str]:
    """Return the first value of each key of `key : value` lines."""
    fields: Dict[str, str] = {}
    for match in filter(None, map(_LINE.match, text.splitlines())):
        fields.setdefault(match[1], match[2])
    return fields


def _unknown(question: str, text: str) -> ProbeParseError:
    lines: List[str] = text.split("\n")
    shown = next((line.strip() for line in lines if line.strip()), "(nothing)")
    return ProbeParseError(f"hccn_tool {question} printed nothing that is known; its first line: {shown[:120]}")
