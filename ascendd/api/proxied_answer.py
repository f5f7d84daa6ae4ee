"""ProxiedAnswer: what is known of an answer that another engine writes, read from the bytes that pass."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from ascendd.api.protocol import PromptTokensDetails, Usage
from ascendd.telemetry.metrics import MetricStore

_FINISH = re.compile(rb'"finish_reason":\s*"(\w{1,32})"')
_DONE = b"data: [DONE]"


class _CachedTokens(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _CachedTokens | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None


_decode = msgspec.json.Decoder(_Body).decode


@dataclass
class ProxiedAnswer:
    """Usage, ends and times of one answer; `keeps_usage` where the client asked for the event of the usage alone."""

    metrics: MetricStore
    received_at: float
    num_choices: int = 1
    keeps_usage: bool = False
    first_token_s: float | None = None
    finish_reasons: Counter[str] = field(default_factory=Counter)
    usage: Usage = field(default_factory=lambda: Usage(0, 0, 0, PromptTokensDetails(cached_tokens=0)))
    is_whole: bool = False
    _last_at: float = 0.0
    _rest: bytes = b""

    def read_body(self, body: bytes) -> None:
        """Take a whole answer, which does not tell when its first token was made."""
        self._take(body)
        self.is_whole = True

    def read_events(self, data: bytes) -> bytes:
        """Take what came of a stream of events; return whole events to pass on, at once and as they came."""
        kept = []
        for event in self._events(data):
            if event.startswith(_DONE):
                self.is_whole = True
            elif event.startswith(b"data:"):
                self._note_token(time.monotonic())
                self.finish_reasons.update(reason.decode() for reason in _FINISH.findall(event))
                if b'"choices":[]' in event and b'"usage"' in event:
                    self._take(event[5:])
                    if not self.keeps_usage:
                        continue
            kept.append(event)
        return b"".join(kept)

    def _events(self, data: bytes) -> Iterator[bytes]:
        *events, self._rest = (self._rest + data).split(b"\n\n")
        return (event + b"\n\n" for event in events)

    def _note_token(self, now_s: float) -> None:
        if self.first_token_s is None:
            self.first_token_s = now_s - self.received_at
            self.metrics.observe("ascendd_request_time_to_first_token_seconds", self.first_token_s)
        else:
            self.metrics.observe("ascendd_request_inter_token_seconds", now_s - self._last_at)
        self._last_at = now_s

    def _take(self, body: bytes) -> None:
        try:
            told = _decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        self.finish_reasons.update(choice.finish_reason for choice in told.choices or () if choice.finish_reason)
        if (usage := told.usage) is not None:
            details = usage.prompt_tokens_details
            cached = 0 if details is None else details.cached_tokens or 0
            num_made = usage.completion_tokens or 0
            self.usage = Usage(
                usage.prompt_tokens,
                num_made,
                usage.prompt_tokens + num_made,
                PromptTokensDetails(cached_tokens=cached),
            )
