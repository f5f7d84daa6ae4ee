"""
The language of a report: English, or Chinese by the catalogue beside this module.

Verdicts, titles, remedies and the frame of the table are translated here, findings by `finding_texts`; words of tools,
names and numbers stay as they were measured, and `--json` is English always. A remedy that the catalogue lacks, such as
one that comes with an error, stays English.
"""

from __future__ import annotations

import enum
import functools
import json
import re
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Pattern, Tuple

from ascendd.errors import UsageError

_CATALOGUE = Path(__file__).resolve().parent / "data" / "zh.json"
_VARIABLES = ("LC_ALL", "LC_MESSAGES", "LANG")


class Language(enum.Enum):
    """The languages that a report can be in."""

    EN = "en"  # English, which the checks are written in.
    ZH = "zh"  # Chinese, simplified.


def choose_language(asked: Optional[str], environ: Mapping[str, str]) -> Language:
    """Return the language `asked` for, else that of the locale. Raises UsageError for one that there is not."""
    if asked is not None:
        try:
            return Language(asked)
        except ValueError as error:
            raise UsageError(f"--lang {asked}: write zh or en") from error
    locale = next((environ[name] for name in _VARIABLES if environ.get(name)), "")
    return Language.ZH if locale.lower().startswith("zh") else Language.EN


def frame(text: str, language: Language) -> str:
    """Return a fixed text of the report, such as `What to do`."""
    return text if language is Language.EN else str(catalogue()["frame"].get(text, text))


def verdict_word(verdict: str, english: str, language: Language) -> str:
    """Return the word for a verdict (its value) in the table; `english` is the one of the English table."""
    return english if language is Language.EN else str(catalogue()["verdicts"][verdict])


def titles_in(titles: Mapping[str, str], language: Language) -> Dict[str, str]:
    """Return the titles of checks by id."""
    known = {} if language is Language.EN else catalogue()["titles"]
    return {check_id: known.get(check_id, title) for check_id, title in titles.items()}


def remedy_in(text: str, language: Language) -> str:
    """Return a remedy; English where the catalogue has none."""
    if language is Language.EN:
        return text
    for pattern, translated in _patterns():
        match = pattern.fullmatch(text)
        if match is not None:
            return translated.format(*match.groups())
    return text


@functools.cache
def catalogue() -> Dict[str, Any]:
    """Return the Chinese catalogue: verdicts, frame, titles, remedies."""
    loaded: Dict[str, Any] = json.loads(_CATALOGUE.read_text(encoding="utf-8"))
    return loaded


@functools.cache
def _patterns() -> List[Tuple[Pattern[str], str]]:
    """Return the remedies as patterns, those with the most fixed text first."""
    rows = sorted(catalogue()["remedies"].items(), key=lambda row: -len(row[0].replace("{}", "")))
    return [(re.compile("(.+)".join(map(re.escape, text.split("{}"))), re.DOTALL), to) for text, to in rows]
