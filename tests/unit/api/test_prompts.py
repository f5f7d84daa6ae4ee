"""Prompts and messages to token ids."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from ascendd.api.body import convert
from ascendd.api.chat_template import ChatTemplate
from ascendd.api.prompts import chat_prompt, completion_prompts, read_messages, read_prompts
from ascendd.api.protocol import ChatRequest, CompletionRequest
from ascendd.api.tokenizer import INLINE_CHARS, ModelTokenizer
from ascendd.errors import InvalidRequest

VOCAB = 290


def prompts_of(tokenizer: ModelTokenizer, **fields: Any) -> list[list[int]]:
    """Token ids of a completion body."""
    body = convert(fields, CompletionRequest)
    return [prompt.token_ids for prompt in asyncio.run(completion_prompts(body, tokenizer, VOCAB))]


@pytest.mark.parametrize(
    ("value", "expected"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([5, 6], [[5, 6]]), ([[1, 2], [3]], [[1, 2], [3]])],
    ids=repr,
)
def test_four_forms_of_a_prompt(value: Any, expected: list[Any]) -> None:
    """B101: text, texts, token ids and lists of them are all lists of prompts."""
    assert read_prompts(value, VOCAB) == expected


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "required"),
        ({"a": 1}, "must be a string"),
        (5, "must be a string"),
        ([], "empty"),
        ([[]], "empty"),
        ([[1], []], "empty"),
        ([-1], "out of vocabulary"),
        ([VOCAB], "out of vocabulary"),
        ([[1], [VOCAB]], "out of vocabulary"),
        ([2**70], "out of vocabulary"),
        ([1, "a"], "mixes"),
        (["a", 1], "mixes"),
        ([[1], "a"], "mixes"),
        ([["a"]], "mixes"),
        ([True], "mixes"),
        ([1.0], "mixes"),
        (["a"] * 1025, "at most 1024"),
        ("\ud800", "surrogate"),
    ],
    ids=lambda value: ascii(value)[:24],
)
def test_bad_prompt_is_refused(value: Any, words: str) -> None:
    """B24, B25, B26, B76, B101: one bad prompt fails the whole call, by the model's own vocabulary."""
    with pytest.raises(InvalidRequest, match=words) as caught:
        read_prompts(value, VOCAB)

    assert caught.value.param == "prompt"


@pytest.mark.parametrize("value", ["", [""], ["a", ""]], ids=repr)
def test_empty_text_depends_on_the_tokenizer(
    byte_level_tokenizer: ModelTokenizer, bos_tokenizer: ModelTokenizer, value: Any
) -> None:
    """B26: an empty text is refused where no token results, and is the BOS where the tokenizer adds one."""
    with pytest.raises(InvalidRequest, match="`prompt` is empty"):
        prompts_of(byte_level_tokenizer, prompt=value)

    assert prompts_of(bos_tokenizer, prompt=value)[-1] == [0]


def test_token_ids_are_taken_as_they_are(bos_tokenizer: ModelTokenizer) -> None:
    """Token ids get no BOS; texts do unless add_special_tokens is false."""
    assert prompts_of(bos_tokenizer, prompt=[5, 6]) == [[5, 6]]
    assert prompts_of(bos_tokenizer, prompt="a")[0][0] == 0
    assert prompts_of(bos_tokenizer, prompt="a", add_special_tokens=False)[0][0] != 0


def test_long_text_is_encoded_in_a_thread(byte_level_tokenizer: ModelTokenizer) -> None:
    """B64: only a text short enough not to hold up the event loop is encoded on it."""

    async def where(num_chars: int) -> int:
        return await byte_level_tokenizer.run(num_chars, threading.get_ident)

    assert asyncio.run(where(INLINE_CHARS)) == threading.get_ident()
    assert asyncio.run(where(INLINE_CHARS + 1)) != threading.get_ident()


def test_messages_become_what_templates_know() -> None:
    """A developer is system, text parts are joined, null content beside tool calls is empty, arguments are values."""
    request = convert(
        {
            "messages": [
                {"role": "developer", "content": "rules"},
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                    "name": "eve",
                },
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"x": 1}'}}],
                },
                {"role": "tool", "content": "2", "tool_call_id": "1"},
            ]
        },
        ChatRequest,
    )

    assert read_messages(request.messages) == [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "a\nb", "name": "eve"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"x": 1}}}],
        },
        {"role": "tool", "content": "2", "tool_call_id": "1"},
    ]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ([{"role": "wizard", "content": "a"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": ["a"]}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "messages[0].content"),
        ([{"role": "user", "content": "a"}, {"role": "user", "content": "\ud800"}], "messages[1].content"),
    ],
    ids=ascii,
)
def test_bad_message_is_named(messages: Any, param: str) -> None:
    """A message that cannot be shown to the model is refused with its place in the list."""
    with pytest.raises(InvalidRequest) as caught:
        read_messages(convert({"messages": messages}, ChatRequest).messages)

    assert caught.value.param == param


@pytest.mark.parametrize("name", ["messages", "tokenize", "tools", "add_generation_prompt", "bos_token"])
def test_reserved_keyword_is_refused(byte_level_tokenizer: ModelTokenizer, name: str) -> None:
    """B102: chat_template_kwargs must not replace what the server sets."""
    body = convert({"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {name: True}}, ChatRequest)

    with pytest.raises(InvalidRequest, match=name):
        asyncio.run(chat_prompt(body, byte_level_tokenizer, ChatTemplate("x", {})))


def test_chat_has_the_template_s_bos_only(bos_tokenizer: ModelTokenizer) -> None:
    """B88: the chat path adds nothing to what the template wrote."""
    body = convert({"messages": [{"role": "user", "content": "a"}]}, ChatRequest)
    template = ChatTemplate("{{ bos_token }}{{ messages[0].content }}", {"bos_token": "<s>"})
    prompt = asyncio.run(chat_prompt(body, bos_tokenizer, template))

    assert prompt.token_ids.count(0) == 1
