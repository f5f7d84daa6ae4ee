"""Sampling fields: ranges, neutral values, and what is not supported."""

from __future__ import annotations

from typing import Any

import pytest

from ascendd.api.body import convert, decode_object
from ascendd.api.logit_fields import LogprobSpec, read_logprobs
from ascendd.api.parameters import GenerationSpec, derived_seed, read_spec, refuse_unsupported
from ascendd.api.protocol import ChatRequest, CompletionRequest
from ascendd.errors import ContextLengthExceeded, InvalidRequest
from ascendd.ipc.messages import EngineHello

VOCAB = 300
BOUNDS = EngineHello("m", 128, VOCAB, (2,), 64, 16, 8)


class LetterVocabulary:
    """One id per character, 10 and up; <|end|> is an added token."""

    def added_token_id(self, text: str) -> int | None:
        return 7 if text == "<|end|>" else None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [ord(character) for character in text]


def spec_of(*, allow_zero: bool = False, default: int | None = 16, **fields: Any) -> GenerationSpec:
    """The spec of a completion body with `fields`."""
    body = convert(fields, CompletionRequest)
    return read_spec(
        body,
        BOUNDS,
        LetterVocabulary(),
        max_tokens=body.max_tokens,
        default_max_tokens=default,
        allow_zero=allow_zero,
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"seed": 2**64}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"stop_token_ids": [2**70]}, "stop_token_ids"),
        ({"stop_token_ids": [VOCAB]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": [1] * 257}, "stop_token_ids"),
        ({"top_k": 2**31}, "top_k"),
        ({"top_k": -2}, "top_k"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"priority": 2**31}, "priority"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"stop": ""}, "stop"),
        ({"stop": ["", "x"]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": ["x" * 257]}, "stop"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"logit_bias": {str(VOCAB): -100}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"AI": -100}}, "logit_bias"),
        ({"logit_bias": {"1.5": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"logit_bias": {"5": 100.5}}, "logit_bias"),
        ({"logit_bias": {str(number): 1 for number in range(1025)}}, "logit_bias"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [1, VOCAB]}, "allowed_token_ids"),
        ({"bad_words": [""]}, "bad_words"),
        ({"bad_words": ["a", " "]}, "bad_words"),
        ({"bad_words": ["x" * 257]}, "bad_words"),
        ({"bad_words": ["x"] * 257}, "bad_words"),
        ({"bad_words": ["\ud800"]}, "bad_words"),
        ({"bad_words": ["ž" + chr(VOCAB)]}, "bad_words"),
        ({"min_p": 1.1}, "min_p"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 129}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"best_of": 2, "n": 2, "stream": True}, "best_of"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_value_out_of_range_is_named(fields: dict[str, Any], param: str) -> None:
    """B20, B21, B22, B25, B28, B48, B53, B76, B100: a value out of range is refused with its field, whatever its size."""
    with pytest.raises(InvalidRequest) as caught:
        spec_of(**fields)

    assert caught.value.param == param
    assert f"`{param}`" in caught.value.message


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"max_tokens": "ten"}', "max_tokens"),
        (b'{"temperature": true}', "temperature"),
        (b'{"n": 1.5}', "n"),
        (b'{"stop": [1]}', "stop[0]"),
        (b'{"stop": {"a": 1}}', "stop"),
        (b'{"stop_token_ids": [true]}', "stop_token_ids[0]"),
        (b'{"messages": "hi"}', "messages"),
        (b'{"messages": [{"content": "no role"}]}', "messages[0]"),
        (b'{"chat_template_kwargs": "x"}', "chat_template_kwargs"),
        (b'{"stream_options": 5}', "stream_options"),
    ],
    ids=lambda value: value.decode() if isinstance(value, bytes) else value,
)
def test_wrong_type_is_named(body: bytes, param: str) -> None:
    """B76, B100, B102: a field of another type is refused by name; true is no number."""
    with pytest.raises(InvalidRequest) as caught:
        convert(decode_object(body), ChatRequest)

    assert caught.value.param == param


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"",
        b"[]",
        b'"x"',
        b"null",
        b"5",
        b'{"temperature": NaN}',
        b'{"a": "\xff"}',
        b"[" * 100_000,
        b'{"a": 1e999}',
    ],
    ids=lambda body: repr(body[:24]),
)
def test_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    """B76: what is not a JSON object is refused; NaN is not JSON, and deep nesting ends no process."""
    with pytest.raises(InvalidRequest, match=r"not JSON|must be a JSON object|nested too deeply|is 1e999"):
        decode_object(body)


@pytest.mark.parametrize("temperature", [0, 0.0, 1e-5, 1e-4, 1e-3, 0.009])
def test_tiny_temperature_is_greedy(temperature: float) -> None:
    """B49: temperatures that would overflow the logits mean greedy."""
    assert spec_of(temperature=temperature).params_for(0, 4).temperature == 0.0


def test_defaults_are_openai_s() -> None:
    """Null and absent mean temperature 1, top_p 1, no top_k, one sample, no seed."""
    names = ("temperature", "top_p", "top_k", "n", "seed", "stop", "max_tokens", "min_tokens", "stop_token_ids")
    params = spec_of().params_for(0, 16)

    assert spec_of(**dict.fromkeys(names)) == spec_of()
    assert (params.temperature, params.top_p, params.top_k, params.seed, params.max_tokens) == (1.0, 1.0, 0, None, 16)
    assert spec_of(top_k=-1).top_k == 0


def test_stop_that_is_a_special_token_becomes_its_id() -> None:
    """B16: a stop string that is one added token is sent to the engine as its id, beside the caller's own ids."""
    spec = spec_of(stop=["<|end|>", "x"], stop_token_ids=[9, 9])

    assert spec.params_for(0, 4).stop_token_ids == (9, 7)
    assert spec.stop_strings == ("<|end|>", "x")


def test_fields_reach_the_engine_s_parameters() -> None:
    """Each field is one of SamplingParams; bad words are token sequences, with and without a space before them."""
    fields = {"min_p": 0.1, "presence_penalty": 1, "frequency_penalty": -0.5, "repetition_penalty": 1.2}
    params = spec_of(
        **fields, logit_bias={"7": -100, "9": 2.5}, bad_words=["ab", " c"], allowed_token_ids=[5, 5, 6]
    ).params_for(0, 4)

    assert {name: getattr(params, name) for name in fields} == fields
    assert params.logit_bias == {7: -100, 9: 2.5}
    assert params.bad_words == ((97, 98), (32, 97, 98), (32, 99))
    assert params.allowed_token_ids == (5, 6)
    assert (params.logprobs, params.prompt_logprobs) == (None, None)


def test_candidates_are_ranked_by_logprobs_that_nobody_asked_for() -> None:
    """B53: best_of beyond n has the engine tell logprobs; best_of that is n does not."""
    assert spec_of(best_of=3, n=2).params_for(0, 4).logprobs == 0
    assert spec_of(best_of=2, n=2).params_for(0, 4).logprobs is None
    assert spec_of(best_of=1, stream=True).best_of == 1


def test_prompt_is_scored_for_echo_and_for_its_own_field() -> None:
    """The engine is asked for the larger of both numbers, and for nothing without either."""
    assert LogprobSpec(output=3, prompt=1, echo=True).scored_prompt == 3
    assert LogprobSpec(output=3, echo=False).scored_prompt is None
    assert LogprobSpec(prompt=0).scored_prompt == 0
    with pytest.raises(InvalidRequest, match="stream"):
        read_logprobs(None, "logprobs", 1, stream=True, echo=False)
    with pytest.raises(InvalidRequest, match="from 0 to 20"):
        read_logprobs(21, "top_logprobs", None, stream=False, echo=False)


def test_samples_have_seeds_of_their_own() -> None:
    """B52: with a seed, sample 0 gets it and the others get fixed ones derived from it; all fit 63 bits."""
    spec = spec_of(seed=-1, n=3)
    seeds = [spec.params_for(sample, 4).seed for sample in range(3)]

    assert len(set(seeds)) == 3
    assert seeds == [spec.params_for(sample, 4).seed for sample in range(3)]
    assert all(seed is not None and 0 <= seed < 2**63 for seed in seeds)
    assert derived_seed(7, 0) == 7


@pytest.mark.parametrize(
    ("fields", "prompt", "default", "expected"),
    [
        ({}, 100, 16, 16),
        ({}, 120, 16, 8),
        ({}, 100, None, 28),
        ({"max_tokens": 28}, 100, 16, 28),
        ({"min_tokens": 20}, 100, 16, 20),
    ],
    ids=["default", "default clamped", "fills the context", "asked for and fits", "min_tokens lifts the default"],
)
def test_number_of_tokens_follows_one_rule(
    fields: dict[str, int], prompt: int, default: int | None, expected: int
) -> None:
    """B30: what was not asked for is filled up or clamped to the context of 128."""
    assert spec_of(default=default, **fields).num_tokens_for(prompt, 128, "prompt") == expected


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [({}, 128), ({}, 178), ({"max_tokens": 1000}, 100), ({"max_tokens": 29}, 100), ({"min_tokens": 29}, 100)],
    ids=["no room", "prompt too long", "asked for too much", "one too many", "min_tokens too many"],
)
@pytest.mark.parametrize("default", [16, None])
def test_what_does_not_fit_is_refused_with_the_figures(
    fields: dict[str, int], prompt: int, default: int | None
) -> None:
    """B31, B32: a prompt, or prompt plus max_tokens, beyond the context is context_length_exceeded with its numbers."""
    with pytest.raises(ContextLengthExceeded, match="128 tokens") as caught:
        spec_of(default=default, **fields).num_tokens_for(prompt, 128, "prompt")

    assert caught.value.openai_code == "context_length_exceeded"
    assert f"the prompt has {prompt}" in caught.value.message


def test_echo_alone_may_have_no_tokens() -> None:
    """B29: max_tokens 0 passes where only the prompt is asked for, and needs no room behind it."""
    assert spec_of(allow_zero=True, max_tokens=0).num_tokens_for(128, 128, "prompt") == 0


@pytest.mark.parametrize(
    "raw",
    [
        {"functions": [{"name": "sub"}]},
        {"suffix": "after"},
        {"use_beam_search": True},
        {"guided_grammar": "start: x"},
        {"chat_template": "{{ 1 }}"},
        {"stream_options": {"continuous_usage_stats": True}},
    ],
    ids=repr,
)
def test_what_is_not_done_is_refused(raw: dict[str, Any]) -> None:
    """A field that would change the answer and is not done is a 400 that names it."""
    with pytest.raises(InvalidRequest, match="is not supported") as caught:
        refuse_unsupported(raw)

    assert caught.value.param in raw


@pytest.mark.parametrize(
    "raw",
    [
        {"logprobs": None, "tools": None, "tool_choice": None, "response_format": None, "best_of": None},
        {"length_penalty": 1, "typical_p": 1.0, "suffix": "", "use_beam_search": False},
        {"response_format": {"type": "text"}, "tools": [], "tool_choice": "auto", "modalities": ["text"]},
        {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "some_future_field": 1},
    ],
    ids=["nulls", "neutral", "text only", "without effect"],
)
def test_neutral_and_unknown_values_pass(raw: dict[str, Any]) -> None:
    """Values that change nothing, and fields that are not known, are accepted."""
    assert refuse_unsupported(raw) is None  # type: ignore[func-returns-value]
