"""Which faults of tests/fixtures/faults.yaml a log shows, and the score of what was named."""

from __future__ import annotations

from collections import Counter

from ascendd.diagnose.verdict import Report


def log_cases(faults: list[dict[str, str]]) -> list[tuple[str, str, str, str]]:
    """Return id, text, code and action of each fault that a log shows."""
    return [
        (fault["id"], fault.get("log_shape", fault["input"]), fault["code"], fault["action"])
        for fault in faults
        if "not_a_log" not in fault or "log_shape" in fault
    ]


def print_score(title: str, rows: list[tuple[str, str, str | None]]) -> Counter[str]:
    """Print one line per case that is not right, then the sums; return them."""
    score: Counter[str] = Counter()
    print(f"\n{title}")
    for case_id, expected, got in rows:
        word = "right" if got == expected else "none" if got is None else "wrong"
        score[word] += 1
        if word != "right":
            print(f"  {case_id:10} {word:6} expected {expected}, got {got}")
    print(f"  right {score['right']}, wrong {score['wrong']}, none {score['none']} of {len(rows)}")
    return score


def named(report: Report) -> str | None:
    """Return the id of the cause that a report names."""
    return None if report.cause is None else report.cause.diagnosis.id
