"""What the server does to prompts: each switch by itself, what it tells, and truncation that keeps the end."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascendd.api.chat_template import ChatTemplate
from ascendd.api.preprocess import Preprocessor
from ascendd.api.prompts import Prompt, chat_prompt, completion_prompts
from ascendd.api.protocol import ChatRequest, CompletionRequest
from ascendd.api.tokenizer import ModelTokenizer
from ascendd.config.load import load_text
from ascendd.config.schema import PreprocessSection
from ascendd.errors import ConfigInvalid

TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"


def clean(messages: list[tuple[str, str]], **switches: Any) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """Messages as (role, content) after preprocessing, a character being a token; and what was removed."""
    removed: dict[str, int] = {}
    plain = [{"role": role, "content": content} for role, content in messages]
    cleaned = Preprocessor(PreprocessSection(**switches)).clean_messages(plain, len, removed)
    return [(message["role"], message["content"]) for message in cleaned], removed


def test_nothing_changes_unless_asked() -> None:
    """Every switch is off by default."""
    messages = [("system", "a  b"), ("system", "a  b"), ("user", "<p>x</p>  y")]

    assert clean(messages) == (messages, {})


def test_each_step_tells_what_it_removed() -> None:
    """HTML first, then the white space that it leaves; what the assistant said is not touched."""
    messages = [("user", "<b>hello</b>   world"), ("assistant", "<b>kept</b>  as it is"), ("tool", "a    b")]
    cleaned, removed = clean(messages, strip_html=True, whitespace="all")

    assert cleaned == [("user", "hello world"), ("assistant", "<b>kept</b>  as it is"), ("tool", "a b")]
    assert removed == {"html": 7, "whitespace": 2 + 3}


def test_repeated_system_messages_are_sent_once() -> None:
    """The first stays where it is; another text is another message."""
    messages = [("system", "be kind"), ("user", "1"), ("system", "be kind"), ("system", "be brief"), ("user", "2")]
    cleaned, removed = clean(messages, drop_repeated_system=True)

    assert cleaned == [("system", "be kind"), ("user", "1"), ("system", "be brief"), ("user", "2")]
    assert removed == {"repeated_system": len("be kind")}


@pytest.mark.parametrize(
    ("mode", "messages", "head"),
    [
        ("prepend", [("user", "x")], "SERVER"),
        ("prepend", [("system", "client"), ("user", "x")], "SERVER\n\nclient"),
        ("prepend", [("system", " SERVER "), ("user", "x")], "SERVER"),
        ("replace", [("system", "client"), ("user", "x")], "SERVER"),
        ("default", [("system", "client"), ("user", "x")], "client"),
        ("default", [("user", "x")], "SERVER"),
    ],
)
def test_the_servers_system_prompt_comes_first(mode: str, messages: list[tuple[str, str]], head: str) -> None:
    """One system message at the head, whatever the client sends, so that all requests share their beginning."""
    cleaned, _ = clean(messages, system_prompt="SERVER", system_prompt_mode=mode)

    assert cleaned == [("system", head), ("user", "x")]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(1, 70), st.integers(1, 70), st.integers(0, 60))
def test_truncation_keeps_the_end(ids: list[int], room: int, keep: int, num_head: int) -> None:
    """What is left fits, ends as the prompt ended, begins with the head where it is kept, and the count adds up."""
    num_head = min(num_head, len(ids))
    prompt = Prompt(ids, "", num_head_tokens=num_head)
    section = PreprocessSection(truncate="last", keep_last_tokens=keep)
    fitted = Preprocessor(section).truncate(prompt, room)
    limit = min(room, keep)

    assert len(fitted.token_ids) == min(len(ids), limit)
    assert fitted.removed.get("truncated", 0) == len(ids) - len(fitted.token_ids)
    if len(ids) > limit:
        head = num_head if num_head <= limit // 2 else 0
        assert fitted.token_ids[:head] == ids[:head]
        assert fitted.token_ids[head:] == ids[len(ids) - (limit - head) :]


@pytest.mark.parametrize(("section", "room"), [(PreprocessSection(), 2), (PreprocessSection(truncate="last"), 0)])
def test_nothing_is_cut_by_default_or_where_no_room_is_left(section: PreprocessSection, room: int) -> None:
    """Such a prompt is refused by the length check, as without preprocessing."""
    prompt = Prompt([1, 2, 3], "abc")

    assert Preprocessor(section).truncate(prompt, room) is prompt


def test_a_chat_is_cleaned_before_the_template(byte_level_tokenizer: ModelTokenizer) -> None:
    """Tokens are those of the cleaned text, removed ones are counted by the model's own tokenizer, the head is known."""
    body = msgspec.convert(
        {"messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "a      b"}]}, ChatRequest
    )
    template = ChatTemplate(TEMPLATE, {})
    section = PreprocessSection(whitespace="inline", truncate="last")
    prompt = asyncio.run(chat_prompt(body, byte_level_tokenizer, template, preprocessor=Preprocessor(section)))

    assert prompt.text == "[system]be kind[user]a b[assistant]"
    count = byte_level_tokenizer.count
    assert prompt.removed == {"whitespace": count("a      b") - count("a b")}
    assert prompt.removed["whitespace"] > 0
    head = byte_level_tokenizer.encode("[system]be kind", add_special_tokens=False)
    assert 0 < prompt.num_head_tokens <= len(head)
    assert prompt.token_ids[: prompt.num_head_tokens] == head[: prompt.num_head_tokens]


def test_a_completion_is_cleaned_and_token_ids_are_not(byte_level_tokenizer: ModelTokenizer) -> None:
    """Whoever sends ids knows what the model shall read."""
    pre = Preprocessor(PreprocessSection(strip_html=True))

    def prompts(prompt: Any) -> list[Prompt]:
        body = msgspec.convert({"prompt": prompt}, CompletionRequest)
        return asyncio.run(completion_prompts(body, byte_level_tokenizer, 1000, pre))

    (text,) = prompts("<b>hi</b>")
    (ids,) = prompts(byte_level_tokenizer.encode("<b>hi</b>", add_special_tokens=False))
    assert (text.text, text.removed["html"] > 0) == ("hi", True)
    assert ids.removed == {}


def test_keep_last_tokens_needs_its_policy() -> None:
    """A number that would do nothing is refused."""
    with pytest.raises(ConfigInvalid, match="needs truncate: last"):
        load_text("model: {path: /m}\npreprocess: {keep_last_tokens: 2048}")


def test_a_system_prompt_may_have_lines() -> None:
    """Other texts of the file may not."""
    config = load_text('model: {path: /m}\npreprocess: {system_prompt: "one\\ntwo"}')

    assert config.preprocess.system_prompt == "one\ntwo"
    with pytest.raises(ConfigInvalid, match="line break"):
        load_text('model: {path: "/m\\n"}')
