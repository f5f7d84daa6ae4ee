"""
Tool calls in the text of an answer, in the forms of Hermes and Qwen, Llama 3, and DeepSeek.

Text comes in any cuts and gives the same name and arguments: a call's head is read once it is whole, and from then on
arguments go out as they come.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple


class CallDelta(NamedTuple):
    """A piece of call number `number`: the first has id and name, later ones arguments only."""

    number: int
    arguments: str
    id: str | None = None
    name: str | None = None


Piece = str | CallDelta


@dataclass(frozen=True)
class ToolFormat:
    """
    How a family of models writes a call.

    `head` matches from a call's beginning to its arguments, an object, and names the function; `ignored` are marks
    around calls. Where `opener` is empty, calls are bare objects, and only those that name a known function count.
    """

    name: str
    opener: str
    closer: str
    ignored: tuple[str, ...]
    head: re.Pattern[str]


_NAME = r'\s*\{\s*"name"\s*:\s*"(?P<name>(?:[^"\\]|\\.)+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
HERMES = ToolFormat("hermes", "<tool_call>", "</tool_call>", (), re.compile(_NAME))
LLAMA = ToolFormat("llama", "", "", ("<|python_tag|>",), re.compile(_NAME))
DEEPSEEK = ToolFormat(
    "deepseek",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    re.compile(
        r"(?:function<｜tool▁sep｜>(?P<name>[^\n<]+)\n```json\s*|(?P<bare>[^\n<]+)<｜tool▁sep｜>\s*)(?=\{)"
    ),
)  # fmt: skip
# An object whose first key is another is an answer, not a call.
_NO_CALL = re.compile(r'\s*\{\s*(?:\}|"(?!name"|parameters"|arguments"|type")[^"]*"|[^\s"])')


def find_format(template: str) -> ToolFormat | None:
    """Return the form that a chat template teaches, None where it has no place for tools."""
    if "tools" not in template:
        return None
    if "<tool_call>" in template:
        return HERMES
    if DEEPSEEK.opener in template:
        return DEEPSEEK
    if "<|python_tag|>" in template or '"parameters"' in template or "ipython" in template:
        return LLAMA
    return None


class ToolCallParser:
    """Splits one answer into text and calls; `names` are the functions the caller has."""

    def __init__(self, form: ToolFormat, names: Collection[str]) -> None:
        self._form = form
        self._names = frozenset(names)
        self._held = ""
        self._in_call = False
        self._arguments: _ObjectScanner | None = None
        self._is_first = True
        self.num_calls = 0

    def push(self, text: str) -> list[Piece]:
        """Take `text` and return what it makes certain."""
        self._held += text
        pieces: list[Piece] = []
        while self._advance(pieces, is_end=False):
            pass
        return pieces

    def finish(self) -> list[Piece]:
        """Return what was held back; a call that never became one is text."""
        pieces: list[Piece] = []
        while self._advance(pieces, is_end=True):
            pass
        if self._held and self._arguments is None:
            pieces.append((self._form.opener if self._in_call else "") + self._held)
        self._held = ""
        return pieces

    def _advance(self, pieces: list[Piece], *, is_end: bool) -> bool:
        """Take one step; whether another may follow."""
        if self._arguments is not None:
            return self._advance_arguments(pieces)
        if self._in_call:
            return self._advance_head(pieces, is_end=is_end)
        return self._advance_text(pieces, is_end=is_end)

    def _advance_text(self, pieces: list[Piece], *, is_end: bool) -> bool:
        if not self._held:
            return False
        marks = [mark for mark in (self._form.opener, *self._form.ignored) if mark]
        if not self._form.opener:
            stripped = self._held.lstrip(" \n;") if self.num_calls else self._held.lstrip()
            if (self._is_first or self.num_calls) and stripped.startswith("{"):
                self._held, self._in_call = stripped, True
                return True
            if not stripped and not is_end:
                return False
        found = min(((at, mark) for mark in marks if (at := self._held.find(mark)) >= 0), default=None)
        if found is not None:
            at, mark = found
            self._tell(pieces, self._held[:at])
            self._held = self._held[at + len(mark) :]
            self._in_call = mark == self._form.opener
            return True
        held = 0 if is_end else max((overlap(self._held, mark) for mark in marks), default=0)
        cut = len(self._held) - held
        self._tell(pieces, self._held[:cut])
        self._held = self._held[cut:]
        return False

    def _advance_head(self, pieces: list[Piece], *, is_end: bool) -> bool:
        match = self._form.head.match(self._held)
        name = None if match is None else match["name"] or match.groupdict().get("bare")
        if match is not None and name is not None and self._is_known(name):
            self._begin(pieces, name)
            self._arguments = _ObjectScanner()
            self._held = self._held[match.end() :]
            return True
        closer = self._form.closer
        at = self._held.find(closer) if closer else -1
        if at >= 0 or (is_end and not closer):
            body = self._held if at < 0 else self._held[:at]
            self._held = "" if at < 0 else self._held[at + len(closer) :]
            self._in_call = False
            self._whole(pieces, body)
            return bool(self._held)
        if not closer and (match is not None or _NO_CALL.match(self._held)):
            self._in_call = False
            self._tell(pieces, self._held)
            self._held = ""
        return False

    def _advance_arguments(self, pieces: list[Piece]) -> bool:
        assert self._arguments is not None
        text, self._held = self._arguments.take(self._held)
        if text:
            pieces.append(CallDelta(self.num_calls - 1, text))
        if not self._arguments.is_whole:
            return False
        closer = self._form.closer or "}"
        at = self._held.find(closer)
        if at < 0:
            return False
        self._held = self._held[at + len(closer) :]
        self._arguments, self._in_call = None, False
        return True

    def _whole(self, pieces: list[Piece], body: str) -> None:
        """Read a call that is not written in the usual order, once all of it is there."""
        try:
            call = json.loads(body)
        except (ValueError, RecursionError):
            call = None
        name = call.get("name") if isinstance(call, dict) else None
        if not isinstance(call, dict) or not isinstance(name, str) or not self._is_known(name):
            pieces.append(f"{self._form.opener}{body}{self._form.closer}")
            return
        arguments = call.get("arguments", call.get("parameters", {}))
        self._begin(pieces, name)
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        pieces.append(CallDelta(self.num_calls - 1, text))

    def _begin(self, pieces: list[Piece], name: str) -> None:
        pieces.append(CallDelta(self.num_calls, "", f"call_{uuid.uuid4().hex[:24]}", name))
        self.num_calls += 1

    def _is_known(self, name: str) -> bool:
        return bool(self._form.opener) or name in self._names

    def _tell(self, pieces: list[Piece], text: str) -> None:
        """White space around calls is layout, not an answer."""
        if text and (not self.num_calls or text.strip()):
            pieces.append(text)
            self._is_first = self._is_first and not text.strip()


class _ObjectScanner:
    """Finds the end of a JSON object that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.is_whole = False

    def take(self, text: str) -> tuple[str, str]:
        """Return the part of `text` that belongs to the object, and the rest."""
        if self.is_whole:
            return "", text
        for index, character in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._in_string = False
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.is_whole = True
                    return text[: index + 1], text[index + 1 :]
        return text, ""


def overlap(text: str, mark: str) -> int:
    """Return how many characters at the end of `text` may begin `mark`."""
    return next((num for num in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:num])), 0)
