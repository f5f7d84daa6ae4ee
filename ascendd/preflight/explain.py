"""What one check does, for `ascendd doctor --explain`: told from the check itself."""

from __future__ import annotations

import inspect
import sys
from typing import List, Type

from ascendd.preflight.check import Check, Tier


def explain(check: Type[Check]) -> str:
    """Return title, what it looks at, what it needs first, when it runs and how long it may take."""
    about = inspect.getdoc(sys.modules[check.__module__]) or ""
    lines: List[str] = [f"{check.title} ({check.id})", "", *about.splitlines()]
    sentence = check.__doc__ or ""
    if sentence.strip() and sentence.strip() not in about:
        lines += ["", *inspect.cleandoc(sentence).splitlines()]
    facts = [
        ("needs first", ", ".join(check.requires) or "nothing"),
        ("runs", "with --deep, or when named" if check.tier is Tier.DEEP else "always, where it applies"),
        ("while serving", "looked at again" if check.live else "not looked at again"),
        ("time limit", f"{check.timeout_s:g} s" + _deep(check)),
    ]
    lines += ["", *(f"{name:<14}{value}" for name, value in facts)]
    return "\n".join(lines)


def _deep(check: Type[Check]) -> str:
    return "" if check.deep_timeout_s is None else f", {check.deep_timeout_s:g} s with --deep"
