"""
What a check found, in Chinese: the English text is taken apart by the sentences of data/zh_findings.json. Pure.

A finding is made of sentences joined by `; `, of what is put into them, and of what is appended (a sentence that begins
with a blank, a comma or a semicolon). What is put in is looked up again, since it may be a sentence, too. Words of
tools, names, paths and numbers have none, and stay as they were measured.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any, Dict, List, Optional, Pattern, Tuple

from ascendd.preflight.language import Language

_CATALOGUE = Path(__file__).resolve().parent / "data" / "zh_findings.json"
SHARED = "shared"
_JOINT, _CHINESE_JOINT = "; ", "；"
_APPENDED = (" ", ",", ";")


@functools.cache
def findings_catalogue() -> Dict[str, Dict[str, str]]:
    """Return Chinese by English sentence, by the module of a check; `shared` is what the probes and the runner say."""
    loaded: Dict[str, Any] = json.loads(_CATALOGUE.read_text(encoding="utf-8"))
    return dict(loaded["findings"])


def finding_in(text: str, check_id: str, language: Language) -> str:
    """Return what a check said, in `language`; parts that no sentence fits stay English."""
    return text if language is Language.EN else _phrases(check_id.replace("-", "_")).say(text)


class _Phrases:
    """The sentences that one check may say, each as a pattern; those with the most fixed text first."""

    def __init__(self, table: Dict[str, str]) -> None:
        rows = sorted(table.items(), key=lambda row: -len(row[0].replace("{}", "")))
        whole = [row for row in rows if not row[0].startswith(_APPENDED)]
        appended = [row for row in rows if row[0].startswith(_APPENDED)]
        # First as if nothing that is put in held a joint of its own: a judge joins what it found of each chip.
        self._of_one = [(_pattern(text, f"((?:(?!{_JOINT}).)*?)"), to) for text, to in rows]
        self._of_any = [(_pattern(text, "(.*?)"), to) for text, to in whole]
        self._appended = [(_pattern("{}" + text, "(.*?)"), to) for text, to in appended]

    def say(self, text: str) -> str:
        """Return `text` in Chinese, as far as it is known."""
        known = self._known(text, self._of_one)
        if known is not None:
            return known
        said: List[str] = []
        parts = text.split(_JOINT)
        while parts:
            for length in range(len(parts), 0, -1):
                known = self._known(_JOINT.join(parts[:length]), self._of_one)
                if known is not None:
                    said.append(known)
                    parts = parts[length:]
                    break
            else:
                known = self._known(_JOINT.join(parts), self._of_any)
                if known is not None:
                    said.append(known)
                    break
                said.append(parts.pop(0))
        return _CHINESE_JOINT.join(said)

    def _known(self, text: str, patterns: List[Tuple[Pattern[str], str]]) -> Optional[str]:
        for pattern, to in patterns:
            match = pattern.fullmatch(text)
            if match is not None:
                return to.format(*(self.say(part) if part else "" for part in match.groups()))
        for pattern, to in self._appended:
            match = pattern.fullmatch(text)
            head = None if match is None or match[1] == "" else self._known(match[1], patterns)
            if match is not None and head is not None:
                return head + to.format(*(self.say(part) if part else "" for part in match.groups()[1:]))
        return None


def _pattern(text: str, place: str) -> Pattern[str]:
    return re.compile(place.join(map(re.escape, text.split("{}"))), re.DOTALL)


@functools.cache
def _phrases(module: str) -> _Phrases:
    catalogue = findings_catalogue()
    return _Phrases({**catalogue[SHARED], **catalogue.get(module, {})})
