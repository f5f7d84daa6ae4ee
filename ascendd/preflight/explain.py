"""What one check does, for `ascendd doctor --explain`: told from the check itself."""

from __future__ import annotations

import inspect
import sys
from typing import List, Sequence, Type

from ascendd.errors import UsageError
from ascendd.preflight.check import Check, Tier
from ascendd.preflight.discover import select
from ascendd.preflight.language import Language, catalogue, frame, titles_in


def explain(check_id: str, checks: Sequence[Type[Check]], language: Language = Language.EN) -> str:
    """
    Return title, what it looks at, what it needs first, when it runs and how long it may take.

    Raises UsageError where no check has this id.
    """
    try:
        check, *others = select(checks, [check_id], deep=True)
    except UsageError as error:
        raise UsageError(error.message.replace("--only", "--explain", 1)) from error
    if others:
        raise UsageError(f"--explain {check_id}: name one check")
    about = inspect.getdoc(sys.modules[check.__module__]) or ""
    title = titles_in({check.id: check.title}, language)[check.id]
    lines: List[str] = [f"{title} ({check.id})", ""]
    if language is Language.ZH:
        lines.append(catalogue()["about_checks"][check.id])
    else:
        lines += about.splitlines()
        sentence = check.__doc__ or ""
        if sentence.strip() and sentence.strip() not in about:
            lines += ["", *inspect.cleandoc(sentence).splitlines()]
    nothing, deep = frame("nothing", language), frame(" with --deep", language)
    late = "" if check.deep_timeout_s is None else f", {check.deep_timeout_s:g} s{deep}"
    when = "with --deep, or when named" if check.tier is Tier.DEEP else "always, where it applies"
    facts = [
        ("needs first", ", ".join(check.requires) or nothing),
        ("runs", frame(when, language)),
        ("while serving", frame("looked at again" if check.live else "not looked at again", language)),
        ("time limit", f"{check.timeout_s:g} s{late}"),
    ]
    wide = 14 if language is Language.EN else 0  # a Chinese character is two columns wide
    told = [f"{frame(name, language):<{wide}}{'' if wide else '：'}{value}" for name, value in facts]
    return "\n".join([*lines, "", *told])
