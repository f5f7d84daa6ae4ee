"""The `openai` package against the real API process: what most clients are made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

pytestmark = pytest.mark.system


@pytest.fixture
def client(api: Any) -> Iterator[openai.OpenAI]:
    """A client that does not retry."""
    with openai.OpenAI(base_url=f"{api.url}/v1", api_key="unused", max_retries=0, timeout=120) as client:
        yield client


MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]


def test_chat(api, client):
    """A chat answer parses into the package's types."""
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=4, n=2, seed=1)

    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 8
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_chat_stream_equals_the_whole_answer(api, client):
    """The deltas of a stream join to the text of the whole answer, and its last chunk has the usage."""
    whole = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=9)
    chunks = list(
        client.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=9, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)

    assert text == whole.choices[0].message.content != ""
    assert chunks[-1].usage == whole.usage
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-2:] == [None, "length"]


def test_completions_and_extra_parameters(api, client):
    """Completions work streamed and whole, and vLLM's additions travel in extra_body."""
    whole = client.completions.create(
        model="tiny",
        prompt=["a", "b"],
        max_tokens=3,
        echo=True,
        extra_body={"top_k": 5, "min_tokens": 2, "ignore_eos": True},
    )
    pieces = [
        chunk.choices[0].text
        for chunk in client.completions.create(model="tiny", prompt="a", max_tokens=3, stream=True)
    ]

    assert [choice.text[0] for choice in whole.choices] == ["a", "b"]
    assert "".join(pieces) == whole.choices[0].text[1:]
    assert (api.engine.added[0].params.top_k, api.engine.added[0].params.min_tokens) == (5, 2)


def test_models(api, client):
    """The package lists and shows the model."""
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (openai.NotFoundError, {"model": "other"}),
        (openai.BadRequestError, {"max_tokens": 0}),
        (openai.BadRequestError, {"top_logprobs": 21, "logprobs": True}),
        (openai.BadRequestError, {"messages": []}),
    ],
    ids=["model", "max_tokens", "top_logprobs", "messages"],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refusals_are_the_package_s_errors(api, client, kind, arguments, stream):
    """B77 and others: each refusal raises the error class that the package has for it, streamed or not."""
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**{"model": "tiny", "messages": MESSAGES, "stream": stream, **arguments})

    assert caught.value.body["message"]
    assert caught.value.request_id


def test_error_inside_a_stream_raises(api, client, script):
    """A failure after the first token raises in the package instead of ending the text quietly."""
    api.engine.script = lambda _: script(api.ids("hello world "), fail_at=2)
    stream = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=9, stream=True)

    with pytest.raises(openai.APIError, match="server failed"):
        list(stream)


def test_b56_closing_the_package_s_stream_aborts(api, client, script):
    """B56: breaking out of a stream after three chunks frees the engine."""
    api.engine.script = lambda _: script(api.ids("hello world "), step_s=0.01)
    with client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=80, stream=True) as stream:
        for _ in range(3):
            next(stream)

    api.engine.wait(lambda: bool(api.engine.aborted))
    assert api.engine.aborted == [api.engine.added[0].seq_id]


def test_b74_wrong_key_is_the_package_s_authentication_error(start_api, script, tmp_path):
    """B74: a wrong key is AuthenticationError, the right one works, a missing engine is APIStatusError 503."""
    keys = tmp_path / "keys"
    keys.write_text("k-right\n", encoding="utf-8")
    api = start_api(listen={"api_key_file": str(keys)})
    wrong = openai.OpenAI(base_url=f"{api.url}/v1", api_key="k-wrong", max_retries=0)
    with wrong, pytest.raises(openai.AuthenticationError):
        wrong.models.list()
    with openai.OpenAI(base_url=f"{api.url}/v1", api_key="k-right", max_retries=0) as right:
        models = [model.id for model in right.models.list()]
        with pytest.raises(openai.InternalServerError) as caught:
            right.completions.create(model="tiny", prompt="a")

    assert models == ["tiny"]
    assert caught.value.status_code == 503
