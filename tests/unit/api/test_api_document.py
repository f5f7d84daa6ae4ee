"""docs/API.md says what the code does, as far as names and numbers go."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascendd.api import logit_fields, logprobs, parameters, prompts, sse, structured_output, tools
from ascendd.api.auth import OPEN_PATHS
from ascendd.api.engine_client import MAX_QUEUED_TOKENS
from ascendd.api.routes_completions import DEFAULT_MAX_TOKENS
from ascendd.engine.sched.adapter_limit import MAX_OVERTAKES

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "API.md"


@pytest.fixture(scope="module")
def text() -> str:
    """The document on one line."""
    return " ".join(DOCUMENT.read_text(encoding="utf-8").split())


def test_every_unsupported_field_is_listed(text: str) -> None:
    """The list of fields that are refused is whole, and names none that is not."""
    after = text.partition("`use_beam_search` false, null): ")[2]
    listed = after.partition(". ##")[0].replace("`", "").split(", ")

    assert sorted(listed) == sorted(parameters.UNSUPPORTED)


@pytest.mark.parametrize(
    "words",
    [
        f"up to {parameters.MAX_STOP_STRINGS} strings of up to {parameters.MAX_STOP_CHARS} characters",
        f"`stop_token_ids` (up to {parameters.MAX_STOP_TOKEN_IDS})",
        f"below {parameters.MIN_TEMPERATURE} is greedy; the range is 0 to {parameters.MAX_TEMPERATURE:g}",
        f"`n` is at most {parameters.MAX_N}, prompts in one call at most {prompts.MAX_PROMPTS}",
        f"(-{logit_fields.MAX_PENALTY:g} to {logit_fields.MAX_PENALTY:g}) count tokens of the answer",
        f"({logit_fields.MIN_REPETITION_PENALTY:g} to {logit_fields.MAX_REPETITION_PENALTY:g}, 1 is none)",
        f"up to {logit_fields.MAX_BIASES} token ids with -{logit_fields.MAX_BIAS:g} to {logit_fields.MAX_BIAS:g}",
        f"up to {logit_fields.MAX_BAD_WORDS} words of up to {logit_fields.MAX_BAD_WORD_CHARS} characters",
        f"(up to {parameters.MAX_N}, at least `n`)",
        f"`top_logprobs` 0 to {logit_fields.MAX_LOGPROBS}",
        f"`-inf` is written as {logprobs.LEAST_LOGPROB}",
        f"more than {structured_output.MAX_REFERENCES} different definitions",
        f"At most {tools.MAX_TOOLS} tools are taken",
        f"completions get {DEFAULT_MAX_TOKENS} tokens",
        f"overtaken by at most {MAX_OVERTAKES} of the others",
        f"after {sse.STALL_TIMEOUT_S:g} s, or once {MAX_QUEUED_TOKENS} of its tokens wait",
        *(f"`GET {path}`" for path in sorted(OPEN_PATHS)),
    ],
)
def test_limits_are_the_code_s(text: str, words: str) -> None:
    """Every limit in the document is the constant that the code checks."""
    assert words in text
