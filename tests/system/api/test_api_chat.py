"""Chats through the real API process: templates that refuse, are missing, or write a BOS."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.system

USER = {"role": "user", "content": "b"}
STRICT = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}"
    "{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}"
)


@pytest.fixture(scope="module")
def strict_api(start_api, script):
    """A model whose template is strict and writes the BOS, and whose tokenizer adds one to plain text."""
    api = start_api(bos=True, tokenizer_config={"chat_template": STRICT})
    api.attach_engine(lambda _: script(api.ids("hello ")))
    return api


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([{"role": "system", "content": "a"}, USER], "System role not supported"),
        ([USER, USER], "Conversation roles must alternate"),
    ],
    ids=["B85", "B86"],
)
def test_b85_b86_template_refuses(strict_api, messages, words):
    """B85, B86: what the template refuses is a 400 with its own words, and the next request is served."""
    answer = strict_api.chat(messages=messages)

    assert answer.status == 400
    assert words in answer.error["message"]
    assert answer.error["param"] == "messages"
    assert strict_api.alive()


def test_b86_no_template(start_api, script):
    """B86: a model without a template answers chats with a 400 that points to completions, which work."""
    api = start_api(tokenizer_config={"chat_template": None})
    api.attach_engine(lambda _: script(api.ids("hello ")))
    answer = api.chat()

    assert answer.status == 400
    assert "no chat template, use /v1/completions" in answer.error["message"]
    assert api.alive()


def test_b88_one_bos(strict_api):
    """B88, B26: a chat has the template's BOS only, a text gets one, and an empty text is just that one."""
    chat, text, empty = (
        strict_api.chat(messages=[USER], max_tokens=1),
        strict_api.complete(prompt="b", max_tokens=1),
        strict_api.complete(prompt="", max_tokens=1),
    )
    ids = [add.prompt_token_ids for add in strict_api.engine.added[-3:]]

    assert ids == [[0, *strict_api.ids("b")], [0, *strict_api.ids("b")], [0]]
    assert chat.json["usage"]["prompt_tokens"] == text.json["usage"]["prompt_tokens"] == 2
    assert empty.json["usage"]["prompt_tokens"] == 1


def test_b102_keywords_reach_the_template(strict_api):
    """B102: chat_template_kwargs change what the template writes."""
    strict_api.chat(messages=[USER], max_tokens=1, chat_template_kwargs={"enable_thinking": False})

    assert strict_api.engine.added[-1].prompt_token_ids == [0, *strict_api.ids("bFalse")]


def test_content_parts_are_text(api):
    """Content may be a list of text parts; roles a template does not know are mapped or refused."""
    api.chat(messages=[{"role": "developer", "content": [{"type": "text", "text": "a"}]}, USER], max_tokens=1)
    prompt = "<|im_start|>system\na<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n"
    image = api.chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])

    assert api.engine.added[0].prompt_token_ids == api.ids(prompt)
    assert image.status == 400
    assert image.error["param"] == "messages[0].content"
