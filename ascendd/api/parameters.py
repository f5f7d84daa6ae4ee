"""Sampling fields of a request, checked against the engine's bounds; none that changes the answer is ignored."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ascendd.api.logit_fields import LogitSpec, LogprobSpec, Vocabulary, read_logit_fields
from ascendd.api.protocol import SamplingFields
from ascendd.api.ranges import check_count, check_token_id, integer, number
from ascendd.api.structured_output import read_grammar
from ascendd.errors import ContextLengthExceeded, InvalidRequest
from ascendd.ipc.messages import EngineHello, Grammar, SamplingParams

MAX_N = 128
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 256
MAX_STOP_TOKEN_IDS = 256
# Below it, logits divided by the temperature overflow in half precision; the text is the greedy one anyway.
MIN_TEMPERATURE = 0.01
MAX_TEMPERATURE = 2.0
_INT32 = 2**31
_INT64 = 2**63
# Drops what the engine's random generators, which take no negative seeds, do not take.
_SEED_BITS = 2**63

# Fields that would change the answer and are not done here -> the values that change nothing. None always is one.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "length_penalty": (1,),
    "typical_p": (1,),
    "suffix": ("",),
    "use_beam_search": (False,),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "guided_grammar": (),
    "modalities": (["text"],),
    "audio": (),
    "reasoning_effort": ("none",),
    "web_search_options": (),
    "documents": ([],),
    "chat_template": (),
    "continue_final_message": (False,),
    "truncate_prompt_tokens": (),
    "prompt_embeds": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "cache_salt": (),
}


def refuse_unsupported(raw: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for the first field of `raw` that this version would have to ignore."""
    for name, neutral in UNSUPPORTED.items():
        value = raw.get(name)
        if value is None or any(_same(value, item) for item in neutral):
            continue
        raise InvalidRequest(
            f"`{name}` is not supported by this server; leave it out", param=name, openai_code="unsupported_parameter"
        )
    options = raw.get("stream_options")
    if isinstance(options, dict) and options.get("continuous_usage_stats"):
        raise InvalidRequest("`stream_options.continuous_usage_stats` is not supported by this server; leave it out",
                             param="stream_options", openai_code="unsupported_parameter")  # fmt: skip


@dataclass(frozen=True)
class GenerationSpec:
    """How the sequences of one request are generated; `max_tokens` None means: up to the end of the context."""

    n: int
    # Sequences made of each prompt, of which the best n are answered.
    best_of: int
    max_tokens: int | None
    default_max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    min_tokens: int
    ignore_eos: bool
    stop_strings: tuple[str, ...]
    # Ids of stop strings that are the text of one added token -> that text; such tokens never reach the text.
    stop_texts: Mapping[int, str]
    stop_token_ids: tuple[int, ...]
    include_stop: bool
    skip_special_tokens: bool
    priority: int
    logits: LogitSpec
    logprobs: LogprobSpec
    grammar: Grammar | None

    def num_tokens_for(self, num_prompt_tokens: int, max_model_len: int, param: str) -> int:
        """
        Return the most tokens to generate behind a prompt of `num_prompt_tokens`.

        The rule for both fields: what was asked for must fit (400), what was not is filled up or clamped.
        Raises ContextLengthExceeded with all three figures; `param` is the field that holds the prompt.
        """
        room = max_model_len - num_prompt_tokens
        asked = self.max_tokens
        if asked is None:
            least = max(1, self.min_tokens)
            if room < least:
                _raise_too_long(max_model_len, num_prompt_tokens, least, param)
            return room if self.default_max_tokens is None else min(room, max(self.default_max_tokens, least))
        if room < asked:
            _raise_too_long(max_model_len, num_prompt_tokens, asked, param)
        return asked

    def params_for(self, sample: int, max_tokens: int) -> SamplingParams:
        """Return what the engine gets for sample number `sample` of a prompt."""
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=None if self.seed is None else derived_seed(self.seed, sample),
            stop_token_ids=(*self.stop_token_ids, *self.stop_texts),
            ignore_eos=self.ignore_eos,
            min_tokens=self.min_tokens,
            min_p=self.logits.min_p,
            presence_penalty=self.logits.presence_penalty,
            frequency_penalty=self.logits.frequency_penalty,
            repetition_penalty=self.logits.repetition_penalty,
            logit_bias=dict(self.logits.logit_bias),
            bad_words=self.logits.bad_words,
            allowed_token_ids=self.logits.allowed_token_ids,
            # Of several candidates the best is found by the logprobs of its tokens.
            logprobs=0 if self.logprobs.output is None and self.best_of > self.n else self.logprobs.output,
            prompt_logprobs=self.logprobs.scored_prompt,
            grammar=self.grammar,
        )


def read_spec(
    fields: SamplingFields,
    bounds: EngineHello,
    vocabulary: Vocabulary,
    *,
    max_tokens: int | None,
    default_max_tokens: int | None,
    allow_zero: bool = False,
    max_tokens_field: str = "max_tokens",
    logprobs: LogprobSpec | None = None,
) -> GenerationSpec:
    """
    Check every sampling field and return the spec. Raises InvalidRequest that names field, value and rule.

    `allow_zero` lets max_tokens be 0, for answers that only echo the prompt.
    """
    stop_strings = _stop_strings(fields.stop)
    stop_texts = {token_id: text for text in stop_strings if (token_id := vocabulary.added_token_id(text)) is not None}
    stop_token_ids = fields.stop_token_ids or []
    check_count("stop_token_ids", len(stop_token_ids), MAX_STOP_TOKEN_IDS, "ids")
    for token_id in stop_token_ids:
        check_token_id(token_id, bounds.vocab_size, "stop_token_ids")
    if fields.stream_options is not None and not fields.stream:
        raise InvalidRequest("`stream_options` needs `stream`: true", param="stream_options")
    if max_tokens is not None and not (0 if allow_zero else 1) <= max_tokens < _INT32:
        least = "at least 0" if allow_zero else "at least 1"
        raise InvalidRequest(f"`{max_tokens_field}` is {max_tokens}; it must be {least} and less than {_INT32}",
                             param=max_tokens_field)  # fmt: skip
    min_tokens = integer("min_tokens", fields.min_tokens, 0, 0, _INT32 - 1)
    if max_tokens is not None and min_tokens > max_tokens:
        raise InvalidRequest(f"`min_tokens` is {min_tokens}, more than `{max_tokens_field}` ({max_tokens})",
                             param="min_tokens")  # fmt: skip
    temperature = number("temperature", fields.temperature, 1.0, 0.0, MAX_TEMPERATURE)
    top_p = number("top_p", fields.top_p, 1.0, 0.0, 1.0)
    if top_p == 0:
        raise InvalidRequest(
            "`top_p` is 0; it must be more than 0 (for greedy text set `temperature` to 0)", param="top_p"
        )
    top_k = integer("top_k", fields.top_k, 0, -1, _INT32 - 1)
    n = integer("n", fields.n, 1, 1, MAX_N)
    return GenerationSpec(
        n=n,
        best_of=_best_of(fields, n),
        max_tokens=max_tokens,
        default_max_tokens=default_max_tokens,
        temperature=0.0 if temperature < MIN_TEMPERATURE else temperature,
        top_p=top_p,
        top_k=max(0, top_k),
        seed=None if fields.seed is None else integer("seed", fields.seed, 0, -_INT64, _INT64 - 1) % _SEED_BITS,
        min_tokens=min_tokens,
        ignore_eos=bool(fields.ignore_eos),
        stop_strings=stop_strings,
        stop_texts=stop_texts,
        stop_token_ids=tuple(dict.fromkeys(stop_token_ids)),
        include_stop=bool(fields.include_stop_str_in_output),
        skip_special_tokens=fields.skip_special_tokens is not False,
        priority=integer("priority", fields.priority, 0, -_INT32, _INT32 - 1),
        logits=read_logit_fields(fields, vocabulary, bounds.vocab_size),
        logprobs=logprobs or LogprobSpec(),
        grammar=read_grammar(fields),
    )


def derived_seed(seed: int, sample: int) -> int:
    """Return the seed of sample number `sample`: the caller's own for the first, a hash of both for the others."""
    if sample == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{sample}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % _SEED_BITS


def _best_of(fields: SamplingFields, n: int) -> int:
    best_of = integer("best_of", fields.best_of, n, 1, MAX_N)
    if best_of < n:
        raise InvalidRequest(f"`best_of` is {best_of}, less than `n` ({n})", param="best_of")
    if fields.best_of is not None and best_of > 1 and fields.stream:
        raise InvalidRequest(
            f"`best_of` is {best_of}; with `stream` nobody can know yet which text is the best", param="best_of"
        )
    return best_of


def _stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    strings = [stop] if isinstance(stop, str) else (stop or [])
    check_count("stop", len(strings), MAX_STOP_STRINGS, "strings")
    for text in strings:
        if not text:
            raise InvalidRequest("`stop` holds an empty string, which would match everywhere", param="stop")
        if len(text) > MAX_STOP_CHARS:
            raise InvalidRequest(f"`stop` holds a string of {len(text)} characters, at most {MAX_STOP_CHARS} are taken",
                                 param="stop")  # fmt: skip
    return tuple(dict.fromkeys(strings))


def _same(value: Any, neutral: Any) -> bool:
    """Whether `value` is `neutral`; 0 and false, 1 and true are different things here."""
    if isinstance(value, bool) or isinstance(neutral, bool):
        return value is neutral
    return bool(value == neutral)


def _raise_too_long(max_model_len: int, num_prompt_tokens: int, num_asked: int, param: str) -> None:
    raise ContextLengthExceeded(
        f"this model's context is {max_model_len} tokens; the prompt has {num_prompt_tokens} and "
        f"{num_asked} are to be generated, {num_prompt_tokens + num_asked} together",
        param=param,
        openai_code="context_length_exceeded",
        max_model_len=max_model_len,
        num_prompt_tokens=num_prompt_tokens,
    )
