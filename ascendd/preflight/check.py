"""What a check is and what it answers. One file in checks/ holds one check: measure, judge (pure), report."""

from __future__ import annotations

import abc
import enum
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Optional, Tuple

if TYPE_CHECKING:
    from ascendd.preflight.context import CheckContext
    from ascendd.preflight.target import Target


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Verdict(enum.Enum):
    """What a check found."""

    PASS = "pass"  # noqa: S105 - Measured, and as it should be.
    WARN = "warn"  # Measured, and it works, but somebody should look at it.
    FAIL = "fail"  # Measured, and serving would not work or not last.
    SKIPPED = "skipped"  # Not measured, for a reason that is no fault.
    ERROR = "error"  # Could not be measured: the check itself broke or took too long.


class Tier(enum.Enum):
    """How much a check asks of the host."""

    BASIC = "basic"  # Seconds; safe beside a running instance.
    DEEP = "deep"  # Minutes, or a device for itself; only with --deep, after all others, one by one.


@dataclass(frozen=True)
class Remedy:
    """What to do. `runbook` is an error code with a page in docs/runbooks; `commands` are shown, never run."""

    runbook: str
    text: str
    commands: Tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckResult:
    """The answer of one check. `evidence` holds the measured values (plain JSON); duration in seconds."""

    verdict: Verdict
    summary: str
    evidence: Dict[str, Any] = field(default_factory=dict)
    remedy: Optional[Remedy] = None
    duration_s: float = 0.0
    check_id: str = ""

    def to_json(self) -> Dict[str, Any]:
        """Return plain data; `from_json` takes it back."""
        remedy = None
        if self.remedy is not None:
            remedy = {"runbook": self.remedy.runbook, "text": self.remedy.text, "commands": list(self.remedy.commands)}
        return {
            "id": self.check_id,
            "verdict": self.verdict.value,
            "summary": self.summary,
            "evidence": self.evidence,
            "remedy": remedy,
            "duration_s": round(self.duration_s, 3),
        }

    @classmethod
    def from_json(cls, data: Dict[str, Any]) -> CheckResult:
        """Rebuild a result. Raises KeyError, TypeError or ValueError for anything else."""
        remedy = data["remedy"]
        return cls(
            verdict=Verdict(data["verdict"]),
            summary=printable(str(data["summary"])),
            evidence=dict(data["evidence"]),
            remedy=None
            if remedy is None
            else Remedy(remedy["runbook"], printable(remedy["text"]), tuple(map(printable, remedy["commands"]))),
            duration_s=float(data["duration_s"]),
            check_id=str(data["id"]),
        )


def printable(text: str) -> str:
    """Return `text` without control characters, which a broken tool or file would send to a terminal or an XML file."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


class Check(abc.ABC):
    """One question about the host. `requires` names checks whose failure makes this one pointless."""

    id: ClassVar[str]
    title: ClassVar[str]
    tier: ClassVar[Tier] = Tier.BASIC
    requires: ClassVar[Tuple[str, ...]] = ()
    timeout_s: ClassVar[float] = 30.0
    # With --deep, where a check then does more.
    deep_timeout_s: ClassVar[Optional[float]] = None
    # What it looks at can change while an instance serves, so the daemon and `--watch` look again.
    live: ClassVar[bool] = False

    def skip_reason(self, target: Target) -> Optional[str]:
        """Return why the check has no meaning for `target`, or None when it applies."""
        return None

    def applies_to(self, target: Target) -> bool:
        """Tell whether the check has a meaning for `target`."""
        return self.skip_reason(target) is None

    @abc.abstractmethod
    def run(self, context: CheckContext) -> CheckResult:
        """Measure through `context` and judge. A ProbeError that it lets through becomes ERROR."""


class NpuCheck(Check):
    """A check that only means something where an NPU is to be used."""

    def skip_reason(self, target: Target) -> Optional[str]:
        """Skip where the target is a CPU."""
        return None if target.is_npu else target.why_no_npu


class HostCheck(NpuCheck):
    """A check of the host below an instance: of an NPU host, or of any where an instance is named."""

    def skip_reason(self, target: Target) -> Optional[str]:
        """Skip where neither an NPU nor an instance is to be checked for."""
        return None if target.instance is not None else super().skip_reason(target)


@dataclass(frozen=True)
class Finding:
    """
    One thing that a judge noticed; the worst of several decides the verdict.

    `of` is the part of `text` that names the one of many alike (chips): what is found of several is told once.
    """

    verdict: Verdict
    text: str
    remedy: Optional[Remedy] = None
    of: str = ""


_WORST_FIRST = (Verdict.FAIL, Verdict.ERROR, Verdict.WARN, Verdict.PASS)


def conclude(findings: List[Finding], all_well: str, evidence: Dict[str, Any]) -> CheckResult:
    """Make a result of `findings`: the worst verdict, the texts that led to it, its first remedy."""
    for verdict in _WORST_FIRST:
        worst = [finding for finding in findings if finding.verdict is verdict]
        if worst and verdict is not Verdict.PASS:
            lesser = _told([f for f in findings if f.verdict not in (verdict, Verdict.PASS)])
            if lesser:
                evidence = {**evidence, "also": lesser}
            remedy = next((finding.remedy for finding in worst if finding.remedy is not None), None)
            return CheckResult(verdict, "; ".join(_told(worst)), evidence, remedy)
    notes = [finding.text for finding in findings]
    return CheckResult(Verdict.PASS, "; ".join([all_well, *notes]), evidence)


def conclude_with(finding: Finding, evidence: Dict[str, Any]) -> CheckResult:
    """Make a result of the one finding that decides."""
    return CheckResult(finding.verdict, finding.text, evidence, finding.remedy)


def _told(findings: List[Finding]) -> List[str]:
    """Return the texts, in their order; those that differ only in whom they are of are one, with all named."""
    groups: Dict[Tuple[str, ...], List[Finding]] = {}
    for number, finding in enumerate(findings):
        before, name, after = finding.text.partition(finding.of) if finding.of else (finding.text, str(number), "")
        groups.setdefault((before, after) if finding.of and name else (finding.text, name, after), []).append(finding)
    return [
        one.text if not others else one.text.replace(one.of, ", ".join(same.of for same in (one, *others)), 1)
        for one, *others in groups.values()
    ]
