"""Fields that change the logits before a token is drawn: penalties, bias, bans; and which logprobs are told."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ascendd.api.protocol import SamplingFields
from ascendd.api.ranges import check_count, check_token_id, integer, number
from ascendd.errors import InvalidRequest

MAX_PENALTY = 2.0
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 0.01, 100.0
MAX_BIAS = 100.0
MAX_BIASES = 1024
MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARS = 256
MAX_LOGPROBS = 20
_INTEGER = re.compile(r"-?[0-9]{1,19}")


class Vocabulary(Protocol):
    """What these checks need of a tokenizer (ModelTokenizer)."""

    def added_token_id(self, text: str) -> int | None:
        """Return the id of the added token that is exactly `text`."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the ids of `text`."""


@dataclass(frozen=True)
class LogitSpec:
    """What the engine does to the logits of each step."""

    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class LogprobSpec:
    """
    How many alternatives are told of each token; None tells nothing of it.

    `prompt` is what prompt_logprobs asked for; `echo` says that the echoed prompt has the logprobs of `output`.
    """

    output: int | None = None
    prompt: int | None = None
    echo: bool = False

    @property
    def scored_prompt(self) -> int | None:
        """How many alternatives the engine has to tell of prompt tokens."""
        wanted = [num for num in (self.prompt, self.output if self.echo else None) if num is not None]
        return max(wanted, default=None)


def read_logit_fields(fields: SamplingFields, vocabulary: Vocabulary, vocab_size: int) -> LogitSpec:
    """Check the fields against the model's vocabulary. Raises InvalidRequest that names field, value and rule."""
    return LogitSpec(
        min_p=number("min_p", fields.min_p, 0.0, 0.0, 1.0),
        presence_penalty=number("presence_penalty", fields.presence_penalty, 0.0, -MAX_PENALTY, MAX_PENALTY),
        frequency_penalty=number("frequency_penalty", fields.frequency_penalty, 0.0, -MAX_PENALTY, MAX_PENALTY),
        repetition_penalty=number(
            "repetition_penalty", fields.repetition_penalty, 1.0, MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY
        ),
        logit_bias=_logit_bias(fields.logit_bias or {}, vocab_size),
        bad_words=_bad_words(fields.bad_words or [], vocabulary, vocab_size),
        allowed_token_ids=_allowed_token_ids(fields.allowed_token_ids, vocab_size),
    )


def read_logprobs(output: int | None, field_name: str, prompt: int | None, *, stream: bool, echo: bool) -> LogprobSpec:
    """Check the numbers of alternatives; `field_name` is the field that `output` came from. Raises InvalidRequest."""
    if prompt is not None and stream:
        raise InvalidRequest("`prompt_logprobs` does not go with `stream`; leave one out", param="prompt_logprobs")
    return LogprobSpec(
        output=None if output is None else integer(field_name, output, 0, 0, MAX_LOGPROBS),
        prompt=None if prompt is None else integer("prompt_logprobs", prompt, 0, 0, MAX_LOGPROBS),
        echo=echo,
    )


def _logit_bias(raw: Mapping[str, float], vocab_size: int) -> dict[int, float]:
    check_count("logit_bias", len(raw), MAX_BIASES, "entries")
    biases: dict[int, float] = {}
    for key, value in raw.items():
        if not _INTEGER.fullmatch(key):
            raise InvalidRequest(
                f"`logit_bias` has the key {key[:64]!r}; keys are token ids written as text", param="logit_bias"
            )
        token_id = int(key)
        check_token_id(token_id, vocab_size, "logit_bias")
        biases[token_id] = number("logit_bias", value, 0.0, -MAX_BIAS, MAX_BIAS)
    return biases


def _bad_words(words: list[str], vocabulary: Vocabulary, vocab_size: int) -> tuple[tuple[int, ...], ...]:
    """Return each word's tokens, at the beginning of a text and behind a space, where most tokenizers differ."""
    check_count("bad_words", len(words), MAX_BAD_WORDS, "words")
    banned: dict[tuple[int, ...], None] = {}
    for word in words:
        if not word.strip():
            raise InvalidRequest("`bad_words` holds an empty string, which would ban everything", param="bad_words")
        check_count("bad_words", len(word), MAX_BAD_WORD_CHARS, "characters in one word")
        try:
            word.encode()
        except UnicodeEncodeError:
            raise InvalidRequest("`bad_words` holds half of a surrogate pair", param="bad_words") from None
        for text in (word, f" {word.lstrip()}"):
            token_ids = tuple(vocabulary.encode(text, add_special_tokens=False))
            for token_id in token_ids:
                check_token_id(token_id, vocab_size, "bad_words")
            if token_ids:
                banned[token_ids] = None
    return tuple(banned)


def _allowed_token_ids(token_ids: list[int] | None, vocab_size: int) -> tuple[int, ...]:
    if token_ids is None:
        return ()
    if not token_ids:
        raise InvalidRequest("`allowed_token_ids` is empty, which would allow no token", param="allowed_token_ids")
    for token_id in token_ids:
        check_token_id(token_id, vocab_size, "allowed_token_ids")
    return tuple(dict.fromkeys(token_ids))
