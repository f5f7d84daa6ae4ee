"""
Reads one log as a stream and collects candidates: which rules matched, where, with which lines as evidence.

Memory is bounded whatever the size: one block with the end of the one before it, the last line of each sign, the
earliest candidate of each diagnosis.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from ascendd.diagnose.catalogue import Catalogue, Rule, Sign
from ascendd.diagnose.classify import CLASSIFIERS
from ascendd.diagnose.source import Source
from ascendd.diagnose.stamp import first_time, last_time, rank_of, readable, without_colours

# Longer lines are cut, and only this much around a needle is looked at.
MAX_LINE_BYTES = 64 * 1024
_BEFORE_NEEDLE, _AFTER_NEEDLE = 4000, 12_000
# How far back a line without a time stamp (a traceback) looks for one, and a classifier for its table.
_TAIL_BYTES = 16 * 1024
# A line that only warns shows a suspicion at most, so it makes none of the less specific diagnoses.
_WARNING = re.compile(r"\bWARN(?:ING)?\b|\"level\": ?\"warning\"")


@dataclass(frozen=True)
class Evidence:
    """One line that shows a sign. `line` counts from 1; `time` in seconds since 1970."""

    source: str
    line: int
    text: str
    time: float | None = None
    rank: int | None = None
    is_warning: bool = False


@dataclass
class Candidate:
    """A diagnosis that a log supports: the rule, its lines in order, the facts they name, how often."""

    rule: Rule
    evidence: tuple[Evidence, ...]
    facts: dict[str, str]
    order: int
    count: int = 1

    @property
    def first(self) -> Evidence:
        """The earliest line."""
        return self.evidence[0]


@dataclass
class SourceScan:
    """What one log holds. `order` is the position of the source among all."""

    name: str
    order: int
    num_lines: int = 0
    num_bytes: int = 0
    candidates: dict[str, Candidate] = field(default_factory=dict)
    wrapper: Evidence | None = None
    num_wrappers: int = 0


@dataclass(frozen=True)
class _Line:
    text: str
    before: str
    number: int


class Scanner:
    """Scans one source with `catalogue`."""

    def __init__(self, catalogue: Catalogue, name: str, order: int = 0) -> None:
        self._catalogue = catalogue
        self.result = SourceScan(name, order)
        self._latest: dict[str, tuple[Evidence, dict[str, str]]] = {}
        self._seen: Counter[str] = Counter()
        self._rank = rank_of(name.rsplit("/", 1)[-1])

    def feed(self, block: bytes, tail: bytes) -> None:
        """Take whole lines; `tail` is what came directly before them."""
        self.result.num_bytes += len(block)
        lowered = block.lower()
        found: dict[int, tuple[int, set[bytes]]] = {}
        for prefix, needles in self._catalogue.needle_groups:
            if lowered.find(prefix) < 0:
                continue
            for needle in needles:
                _find_lines(block, lowered, needle, found)
        counted, number = 0, self.result.num_lines
        for start in sorted(found):
            number += block.count(b"\n", counted, start)
            counted = start
            position, names = found[start]
            self._look(_line(block, start, position, tail, number + 1), names)
        self.result.num_lines += block.count(b"\n") + (not block.endswith(b"\n"))

    def _look(self, line: _Line, needles: set[bytes]) -> None:
        tried: set[str] = set()
        evidence: Evidence | None = None
        for needle in needles:
            for sign in self._catalogue.signs_by_needle[needle]:
                if sign.name in tried:
                    continue
                tried.add(sign.name)
                for name, facts in _read(sign, line):
                    evidence = evidence or self._evidence(line)
                    if name.startswith("wrapper."):
                        self.result.wrapper = self.result.wrapper or evidence
                        self.result.num_wrappers += 1
                    else:
                        self._latest[name] = (evidence, facts)
                        self._seen[name] += 1
        if evidence is not None:
            names = [name for name, (seen, _) in self._latest.items() if seen is evidence]
            rules = {rule.index: rule for name in names for rule in self._catalogue.rules_by_sign[name]}
            for index in sorted(rules):
                self._try(rules[index], evidence)

    def _try(self, rule: Rule, newest: Evidence) -> None:
        hits = [self._latest.get(name) for name in rule.when]
        lines = {hit[0].line: hit[0] for hit in hits if hit is not None}
        if None in hits or newest.line - min(lines) > rule.window:
            return
        if min(self._seen[name] for name in rule.when) < rule.min_count:
            return
        facts = {key: value for hit in hits if hit is not None for key, value in hit[1].items()}
        evidence = tuple(lines[number] for number in sorted(lines))
        if rule.level > 1 and any(item.is_warning for item in evidence):
            return
        known = self.result.candidates.get(rule.diagnosis_id)
        if known is None or _is_better(rule, evidence[0], known):
            count = 1 if known is None else known.count + 1
            candidate = Candidate(rule, evidence, facts, self.result.order, count)
            self.result.candidates[rule.diagnosis_id] = candidate
        else:
            known.count += 1

    def _evidence(self, line: _Line) -> Evidence:
        moment = first_time(line.text[:400])
        if moment is None:
            moment = last_time(line.before[-4096:])
        rank = rank_of(line.text)
        return Evidence(
            self.result.name,
            line.number,
            readable(line.text),
            moment,
            self._rank if rank is None else rank,
            _WARNING.search(line.text[:400]) is not None,
        )


def _is_better(rule: Rule, first: Evidence, known: Candidate) -> bool:
    """Whether a second match tells more: a more specific rule close by, or an earlier time (logs of many writers)."""
    if rule.level != known.rule.level:
        return rule.level < known.rule.level and first.line - known.first.line <= rule.window
    return first.time is not None and known.first.time is not None and first.time < known.first.time


def _find_lines(block: bytes, lowered: bytes, needle: bytes, found: dict[int, tuple[int, set[bytes]]]) -> None:
    """Note in `found`, by where a line begins, each line that holds `needle`."""
    position = lowered.find(needle)
    while position >= 0:
        start = block.rfind(b"\n", 0, position) + 1
        found.setdefault(start, (position, set()))[1].add(needle)
        end = block.find(b"\n", position)
        position = lowered.find(needle, end) if end >= 0 else -1


def _line(block: bytes, start: int, position: int, tail: bytes, number: int) -> _Line:
    end = block.find(b"\n", start)
    end = len(block) if end < 0 else end
    first, last = (
        (start, end) if end - start <= _AFTER_NEEDLE else (position - _BEFORE_NEEDLE, position + _AFTER_NEEDLE)
    )
    text = without_colours(block[max(start, first) : min(end, last)].decode("utf-8", "replace").rstrip("\r"))
    before = block[max(0, start - _TAIL_BYTES) : start]
    if len(before) < _TAIL_BYTES:
        before = tail[len(before) - _TAIL_BYTES :] + before
    return _Line(text, before.decode("utf-8", "replace"), number)


def _read(sign: Sign, line: _Line) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the sign's name and facts if the line shows it; a classified sign gets a suffix."""
    match = sign.pattern.search(line.text)
    if match is None:
        return
    groups = [group for group in match.groups() if group]
    facts = {str(number): readable(group, 120) for number, group in enumerate(groups, start=1)}
    if sign.classify is None:
        yield sign.name, facts
        return
    suffix, more = CLASSIFIERS[sign.classify](match, line.before)
    if suffix is not None:
        yield f"{sign.name}.{suffix}", {**facts, **more}


def scan(catalogue: Catalogue, source: Source, order: int = 0) -> SourceScan:
    """Read the whole of `source`."""
    scanner = Scanner(catalogue, source.name, order)
    pending, tail = b"", b""
    for block in source.blocks:
        pending += block
        end = pending.rfind(b"\n") + 1
        if end == 0:
            if len(pending) < MAX_LINE_BYTES:
                continue
            end = len(pending)
        whole, pending = pending[:end], pending[end:]
        scanner.feed(whole, tail)
        tail = (tail + whole[-_TAIL_BYTES:])[-_TAIL_BYTES:]
    if pending:
        scanner.feed(pending, tail)
    return scanner.result
