"""What changed between two looks at a host, for `ascendd doctor --watch`. Pure."""

from __future__ import annotations

from typing import List, Mapping, Sequence

from ascendd.preflight.check import CheckResult, Verdict
from ascendd.preflight.finding_texts import finding_in
from ascendd.preflight.language import Language, remedy_in, verdict_word


def changes(
    before: Sequence[CheckResult],
    now: Sequence[CheckResult],
    titles: Mapping[str, str],
    language: Language = Language.EN,
) -> List[str]:
    """Return a line for each result of `now` whose verdict differs from the one `before`; titles are in `language`."""
    known = {result.check_id: result.verdict for result in before}
    lines = []
    for result in now:
        was = known.get(result.check_id)
        if was is not None and was is not result.verdict:
            said = finding_in(result.summary, result.check_id, language)
            if result.remedy is not None:
                said += f"; {remedy_in(result.remedy.text, language)} ({result.remedy.runbook})"
            turned = f"{_word(was, language)} -> {_word(result.verdict, language)}"
            lines.append(f"{titles[result.check_id]} ({result.check_id}): {turned}: {said}")
    return lines


def merged(before: Sequence[CheckResult], now: Sequence[CheckResult]) -> List[CheckResult]:
    """Return `before` with the results of `now` in their places."""
    again = {result.check_id: result for result in now}
    return [again.get(result.check_id, result) for result in before]


def _word(verdict: Verdict, language: Language) -> str:
    return verdict_word(verdict.value, verdict.value, language)
