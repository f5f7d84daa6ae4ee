"""What slips past the API is refused by the engine, by name, before it can index anything."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ascendd.engine.sequence_check import check_sequence
from ascendd.errors import ContextLengthExceeded, InvalidRequest
from ascendd.ipc.messages import AddSequence, SamplingParams

VOCAB = 100


def check(prompt: list[int], **params: Any) -> None:
    values = {"max_tokens": 4, **params}
    check_sequence(AddSequence(1, prompt, SamplingParams(**values)), vocab_size=VOCAB, max_model_len=16)


@pytest.mark.parametrize(
    ("params", "param", "words"),
    [
        ({"stop_token_ids": (VOCAB,)}, "stop_token_ids", "100, out of vocabulary; ids go from 0 to 99"),
        ({"allowed_token_ids": (5, VOCAB)}, "allowed_token_ids", "100, out of vocabulary"),
        ({"logit_bias": {191222: -100.0}}, "logit_bias", "191222, out of vocabulary"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias", "-1, out of vocabulary"),
        ({"logit_bias": {1: math.nan}}, "logit_bias", "nan"),
        ({"bad_words": ((1, 2), (3, VOCAB))}, "bad_words", "100, out of vocabulary"),
        ({"bad_words": ((),)}, "bad_words", "empty"),
        ({"temperature": -1.0}, "temperature", "-1"),
        ({"temperature": math.inf}, "temperature", "inf"),
        ({"top_p": 0.0}, "top_p", "0"),
        ({"top_k": -1}, "top_k", "-1"),
        ({"min_p": 1.5}, "min_p", "1.5"),
        ({"presence_penalty": math.inf}, "presence_penalty", "inf"),
        ({"frequency_penalty": math.nan}, "frequency_penalty", "nan"),
        ({"repetition_penalty": 0.0}, "repetition_penalty", "0"),
        ({"logprobs": VOCAB + 1}, "logprobs", "101"),
        ({"prompt_logprobs": -1}, "prompt_logprobs", "-1"),
        ({"max_tokens": 0}, "max_tokens", "0"),
        ({"max_tokens": -3}, "max_tokens", "-3"),
    ],
    ids=repr,
)
def test_bad_field_is_named_with_value_and_bound(params: dict[str, Any], param: str, words: str) -> None:
    """B20, B21, B25: each field that could reach outside of a row of logits, or make NaN of it, is an InvalidRequest."""
    with pytest.raises(InvalidRequest) as caught:
        check([1, 2], **params)

    assert caught.value.param == param
    assert words in caught.value.message


@pytest.mark.parametrize("prompt", [[], [VOCAB], [-1], [1, 2, VOCAB + 3]], ids=repr)
def test_bad_prompt_is_refused(prompt: list[int]) -> None:
    """B24, B26: an empty prompt, and ids on either side of the vocabulary."""
    with pytest.raises(InvalidRequest) as caught:
        check(prompt)

    assert caught.value.param == "prompt"


def test_length_counts_one_token_unless_the_prompt_is_only_scored() -> None:
    """A prompt as long as the context is refused, except where nothing is generated behind it."""
    with pytest.raises(ContextLengthExceeded):
        check([1] * 16)
    with pytest.raises(ContextLengthExceeded):
        check([1] * 17, max_tokens=0, prompt_logprobs=1)

    assert check([1] * 15) is None  # type: ignore[func-returns-value]
    assert check([1] * 16, max_tokens=0, prompt_logprobs=1) is None  # type: ignore[func-returns-value]


def test_every_bound_itself_passes() -> None:
    """The last id, and each number at the end of its range, are taken."""
    last = VOCAB - 1
    params = {
        "stop_token_ids": (0, last), "allowed_token_ids": (last,), "logit_bias": {last: -100.0}, "bad_words": ((0, last),),
        "min_p": 1.0, "top_p": 1.0, "temperature": 0.0, "logprobs": 0, "prompt_logprobs": VOCAB, "repetition_penalty": 0.01,
    }  # fmt: skip

    assert check([0, last], **params) is None  # type: ignore[func-returns-value]
