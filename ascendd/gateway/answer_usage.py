"""What an answer cost its key, read as it passes: the server's own usage, which streams are asked for. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

_EVENT_END = re.compile(rb"\r?\n\r?\n")
# An event that does not end must not make the gateway grow.
_MAX_EVENT_BYTES = 1 << 20


class AnswerUsage:
    """
    Counts the tokens of one answer, prompt included.

    A stream is asked for its usage where the client did not ask, and then that chunk is kept from the client. Where it
    never comes, as with a stream that breaks, an event counts as a token and the prompt as its estimate.
    """

    def __init__(self, num_prompt_tokens: int) -> None:
        self._num_prompt_tokens = num_prompt_tokens
        self._num_events = 0
        self._told: int | None = None
        self._hides = False
        self._held = b""

    def asked_for(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is to be changed in the body `raw` so that a stream tells its usage."""
        options = raw.get("stream_options")
        if raw.get("stream") is not True or not isinstance(options, (dict, type(None))):
            return {}  # a wrong type is the instance's to refuse
        if options is not None and options.get("include_usage") is True:
            return {}
        self._hides = True
        return {"stream_options": {**(options or {}), "include_usage": True}}

    @property
    def num_tokens(self) -> int:
        """Tokens so far; none while nothing was answered."""
        if self._told is not None:
            return self._told
        return self._num_prompt_tokens + self._num_events if self._num_events else 0

    def whole(self, body: bytes) -> None:
        """Take the body of an answer that is no stream."""
        self._read(body)

    def feed(self, piece: bytes) -> bytes:
        """Take a piece of a stream and return what the client gets now: whole events."""
        self._held += piece
        passed, start = [], 0
        for end in _EVENT_END.finditer(self._held):
            event = self._held[start : end.end()]
            start = end.end()
            if not self._is_kept_back(event):
                passed.append(event)
        self._held = self._held[start:]
        if len(self._held) > _MAX_EVENT_BYTES:
            passed.append(self.rest())
        return b"".join(passed)

    def rest(self) -> bytes:
        """Return what is left of the stream at its end."""
        rest, self._held = self._held, b""
        return rest

    def _is_kept_back(self, event: bytes) -> bool:
        data = event.strip().removeprefix(b"data:").strip()
        if not data.startswith(b"{"):
            return False
        choices = self._read(data) if b'"usage"' in data else None
        if choices == [] and self._hides:
            return True
        self._num_events += 1
        return False

    def _read(self, data: bytes) -> object:
        """Note the usage in `data` and return its choices."""
        try:
            answer = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if not isinstance(answer, dict):
            return None
        usage = answer.get("usage")
        total = usage.get("total_tokens") if isinstance(usage, dict) else None
        if isinstance(total, int) and total >= 0:
            self._told = total
        return answer.get("choices")
