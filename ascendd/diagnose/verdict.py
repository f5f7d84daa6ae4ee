"""
Which of all candidates is the cause: the earliest specific one, over all ranks.

The earliest candidate is the beginning of the incident. If it is only a code with several causes, or the cry of a rank
whose peer failed, a more specific candidate near it, before which it could have been printed, takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ascendd.diagnose.catalogue import Action, Catalogue, Diagnosis
from ascendd.diagnose.scanner import Candidate, Evidence, SourceScan

# How near (seconds, or lines of one log) a more specific candidate must be to replace one of this level.
# HCCL tells of a dead peer up to its execution timeout (1836 s) before or after the peer's own last line is read.
_ALWAYS = (math.inf, math.inf)
_NEAR: dict[int, tuple[float, float]] = {2: (300, 600), 3: (2400, 3000), 4: _ALWAYS, 5: _ALWAYS}
_REFINES_WITHIN = (300.0, 600.0)
_MAX_OTHERS = 10


@dataclass(frozen=True)
class Finding:
    """A diagnosis with the texts and lines of this log."""

    diagnosis: Diagnosis
    cause: str
    remedy: str
    action: Action
    evidence: tuple[Evidence, ...]
    count: int

    def to_json(self) -> dict[str, Any]:
        """Return the finding as the documented JSON object."""
        row = self.diagnosis
        return {
            "id": row.id,
            "code": row.code,
            "runbook": row.runbook,
            "title": row.title,
            "cause": self.cause,
            "remedy": self.remedy,
            "check": row.check,
            "action": self.action.value,
            "count": self.count,
            "evidence": [
                {"source": item.source, "line": item.line, "time": item.time, "rank": item.rank, "text": item.text}
                for item in self.evidence
            ],
        }


@dataclass(frozen=True)
class Report:
    """What all logs together say."""

    cause: Finding | None
    others: tuple[Finding, ...] = ()
    scans: tuple[SourceScan, ...] = field(default=(), repr=False)

    @property
    def wrapper(self) -> Evidence | None:
        """The first line that says that something failed without saying what."""
        return next((scan.wrapper for scan in self.scans if scan.wrapper is not None), None)

    def to_json(self) -> dict[str, Any]:
        """Return the report as the documented JSON object."""
        return {
            "schema": 1,
            "cause": None if self.cause is None else self.cause.to_json(),
            "others": [finding.to_json() for finding in self.others],
            "unexplained": sum(scan.num_wrappers for scan in self.scans) if self.cause is None else 0,
            "sources": [{"name": s.name, "lines": s.num_lines, "bytes": s.num_bytes} for s in self.scans],
        }


def conclude(catalogue: Catalogue, scans: Sequence[SourceScan]) -> Report:
    """Choose the cause among the candidates of all `scans`; the others follow in their order."""
    candidates = [candidate for scan in scans for candidate in scan.candidates.values()]
    candidates = _order(_without_refined(candidates))
    findings = {id(candidate): _finding(catalogue, candidate) for candidate in candidates}
    chosen = _choose(candidates)
    if chosen is None:
        empty = next((scan for scan in scans if scan.num_bytes == 0), None)
        return Report(_empty_log(catalogue, empty) if empty and _all_empty(scans) else None, scans=tuple(scans))
    others: dict[str, Finding] = {}
    for candidate in candidates:
        if candidate.rule.diagnosis_id != chosen.rule.diagnosis_id:
            others.setdefault(candidate.rule.diagnosis_id, findings[id(candidate)])
    return Report(findings[id(chosen)], tuple(others.values())[:_MAX_OTHERS], tuple(scans))


def _choose(candidates: Sequence[Candidate]) -> Candidate | None:
    """Return the cause among candidates in order."""
    if not candidates:
        return None
    chosen = candidates[0]
    while chosen.rule.level in _NEAR:
        near = [c for c in candidates if c.rule.level < chosen.rule.level and _is_near(c, chosen, chosen.rule.level)]
        if not near:
            break
        chosen = min(near, key=lambda candidate: candidate.rule.level)
    return chosen


def _is_near(one: Candidate, other: Candidate, level: int) -> bool:
    return _distance_within(one, other, _NEAR[level])


def _distance_within(one: Candidate, other: Candidate, limit: tuple[float, float]) -> bool:
    """Compare by time where both have one, by lines within one log, and take different logs without times as near."""
    if one.first.time is not None and other.first.time is not None:
        return abs(one.first.time - other.first.time) <= limit[0]
    return one.order != other.order or abs(one.first.line - other.first.line) <= limit[1]


def _without_refined(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Leave out what another candidate near it says more exactly."""
    return [
        candidate
        for candidate in candidates
        if not any(
            candidate.rule.diagnosis_id in other.rule.refines and _distance_within(candidate, other, _REFINES_WITHIN)
            for other in candidates
        )
    ]


def _order(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Sort by time if every candidate has one, else by log and line; at one place the rule with more signs is first."""
    rows = list(candidates)
    timed = all(candidate.first.time is not None for candidate in rows)

    def key(candidate: Candidate) -> tuple[float, int, int, int, int]:
        first, rule = candidate.first, candidate.rule
        moment = first.time if timed and first.time is not None else 0.0
        return (moment, candidate.order, first.line, rule.level, -len(rule.when))

    return sorted(rows, key=key)


def _finding(catalogue: Catalogue, candidate: Candidate) -> Finding:
    diagnosis = catalogue.diagnoses[candidate.rule.diagnosis_id]
    texts = candidate.rule.overrides
    return Finding(
        diagnosis,
        _filled(texts.get("cause", diagnosis.cause), candidate.facts),
        texts.get("remedy", diagnosis.remedy),
        Action(texts["action"]) if "action" in texts else diagnosis.action,
        candidate.evidence,
        candidate.count,
    )


def _filled(template: str, facts: dict[str, str]) -> str:
    """Put the facts of the line into `{name}` places; a fact that the line does not have reads `?`."""
    for key, value in facts.items():
        template = template.replace("{" + key + "}", value)
    return template if "{" not in template else "".join(_unfilled(template))


def _unfilled(template: str) -> Iterable[str]:
    rest = template
    while (start := rest.find("{")) >= 0 and (end := rest.find("}", start)) >= 0:
        yield rest[:start] + "?"
        rest = rest[end + 1 :]
    yield rest


def _all_empty(scans: Sequence[SourceScan]) -> bool:
    return all(scan.num_bytes == 0 for scan in scans)


def _empty_log(catalogue: Catalogue, scan: SourceScan) -> Finding:
    row = catalogue.diagnoses["env.empty_log"]
    return Finding(row, row.cause, row.remedy, row.action, (Evidence(scan.name, 0, "(no line)"),), 1)
