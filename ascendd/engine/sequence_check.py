"""
What the engine refuses of a sequence. The API has checked the same before; this keeps a slip there from ending all.

An id beyond the vocabulary would index outside of a row of logits, which on some devices corrupts a neighbour's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ascendd.errors import ContextLengthExceeded, InvalidRequest
from ascendd.ipc.messages import AddSequence, SamplingParams


def check_sequence(message: AddSequence, *, vocab_size: int, max_model_len: int) -> None:
    """Raise InvalidRequest or ContextLengthExceeded that names the field, the value and the bound."""
    params = message.params
    length = len(message.prompt_token_ids)
    if length == 0:
        raise InvalidRequest("the prompt is empty", param="prompt")
    if params.max_tokens < 0 or (params.max_tokens == 0 and params.prompt_logprobs is None):
        raise InvalidRequest(
            f"max_tokens is {params.max_tokens}; it must be at least 1, or 0 where the prompt is scored",
            param="max_tokens",
        )
    if length + min(1, params.max_tokens) > max_model_len:
        raise ContextLengthExceeded(
            f"the prompt has {length} tokens; the context of {max_model_len} must hold it and at least one more",
            openai_code="context_length_exceeded",
            param="prompt",
        )
    _check_ids("prompt", message.prompt_token_ids, vocab_size)
    _check_ids("stop_token_ids", params.stop_token_ids, vocab_size)
    _check_ids("allowed_token_ids", params.allowed_token_ids, vocab_size)
    _check_ids("logit_bias", params.logit_bias, vocab_size)
    for word in params.bad_words:
        if not word:
            raise InvalidRequest("bad_words holds an empty word, which would ban everything", param="bad_words")
        _check_ids("bad_words", word, vocab_size)
    _check_numbers(params, vocab_size)


def _check_ids(param: str, token_ids: Iterable[int], vocab_size: int) -> None:
    bad = next((token_id for token_id in token_ids if not 0 <= token_id < vocab_size), None)
    if bad is not None:
        raise InvalidRequest(
            f"{param} has token id {bad}, out of vocabulary; ids go from 0 to {vocab_size - 1}", param=param
        )


def _check_numbers(params: SamplingParams, vocab_size: int) -> None:
    rules: tuple[tuple[str, float, bool, str], ...] = (
        ("temperature", params.temperature, params.temperature >= 0, "at least 0"),
        ("top_p", params.top_p, 0 < params.top_p <= 1, "more than 0 and at most 1"),
        ("top_k", params.top_k, params.top_k >= 0, "at least 0"),
        ("min_p", params.min_p, 0 <= params.min_p <= 1, "from 0 to 1"),
        ("presence_penalty", params.presence_penalty, True, "finite"),
        ("frequency_penalty", params.frequency_penalty, True, "finite"),
        ("repetition_penalty", params.repetition_penalty, params.repetition_penalty > 0, "more than 0"),
        *(("logit_bias", bias, True, "finite") for bias in params.logit_bias.values()),
        *(
            (name, value, 0 <= value <= vocab_size, f"from 0 to {vocab_size}")
            for name, value in (("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs))
            if value is not None
        ),
    )
    for name, value, holds, rule in rules:
        if not math.isfinite(value) or not holds:
            raise InvalidRequest(f"{name} has {value:g}; it must be {rule}", param=name)
