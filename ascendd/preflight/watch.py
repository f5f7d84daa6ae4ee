"""What changed between two looks at a host, for `ascendd doctor --watch`. Pure."""

from __future__ import annotations

from typing import List, Mapping, Sequence

from ascendd.preflight.check import CheckResult


def changes(before: Sequence[CheckResult], now: Sequence[CheckResult], titles: Mapping[str, str]) -> List[str]:
    """Return a line for each result of `now` whose verdict differs from the one `before`."""
    known = {result.check_id: result.verdict for result in before}
    lines = []
    for result in now:
        was = known.get(result.check_id)
        if was is not None and was is not result.verdict:
            remedy = "" if result.remedy is None else f"; {result.remedy.text} ({result.remedy.runbook})"
            line = f"{titles[result.check_id]} ({result.check_id}): {was.value} -> {result.verdict.value}"
            lines.append(f"{line}: {result.summary}{remedy}")
    return lines


def merged(before: Sequence[CheckResult], now: Sequence[CheckResult]) -> List[CheckResult]:
    """Return `before` with the results of `now` in their places."""
    again = {result.check_id: result for result in now}
    return [again.get(result.check_id, result) for result in before]
