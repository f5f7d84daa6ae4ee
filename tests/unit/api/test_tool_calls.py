"""Calls in text: the same for any cuts, in every form; what is no call stays text."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from ascendd.api.body import convert
from ascendd.api.chat_pieces import ChatPieces
from ascendd.api.chat_template import ChatTemplate
from ascendd.api.protocol import ChatRequest
from ascendd.api.tool_calls import DEEPSEEK, HERMES, LLAMA, CallDelta, ToolCallParser, ToolFormat, find_format
from ascendd.api.tools import Tools, read_tools
from ascendd.errors import InvalidRequest
from ascendd.grammar.matcher import GrammarFactory

NAMES = ("sub", "add")
ARGUMENTS = '{"a": 1, "b": {"c": "}\\" {"}, "d": [1, {"e": null}]}'
V3 = "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>"
TEMPLATES = {
    "hermes": "{{ tools }}<tool_call>",
    "llama": "{{ tools }}<|python_tag|>",
    "deepseek v3": "{{ tools }}<｜tool▁call▁begin｜>```json",
    "deepseek v3.1": "{{ tools }}<｜tool▁call▁begin｜>",
}


def v3(name: str, arguments: str) -> str:
    return f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"


def read(form: ToolFormat, cuts: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """Return the text and the calls; of each call only the first piece has id and name."""
    parser = ToolCallParser(form, NAMES)
    text, calls = "", []
    for piece in [*(piece for cut in cuts for piece in parser.push(cut)), *parser.finish()]:
        if isinstance(piece, str):
            text += piece
        elif piece.number == len(calls):
            assert piece.id
            calls.append([piece.name, piece.arguments])
        else:
            assert (piece.id, piece.name) == (None, None)
            calls[piece.number][1] += piece.arguments
    return text, [(name, arguments) for name, arguments in calls]


def cuts_of(text: str) -> list[list[str]]:
    """The text as one piece, as characters, and in random cuts."""
    made = [[text], list(text)]
    draw = random.Random(7)
    for _ in range(20):
        places = sorted(draw.sample(range(len(text) + 1), min(5, len(text))))
        made.append([text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)])
    return made


CALL = f'{{"name": "sub", "arguments": {ARGUMENTS}}}'
TEXTS: list[Any] = [
    (HERMES, f"<tool_call>\n{CALL}\n</tool_call>", "", [("sub", ARGUMENTS)]),
    (HERMES, f"Let me see.\n<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", "Let me see.\n", [("sub", ARGUMENTS)] * 2),
    (HERMES, '<tool_call>{"arguments": {"a": 1}, "name": "sub"}</tool_call>', "", [("sub", '{"a": 1}')]),
    (HERMES, '<tool_call>{"name": "sub", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("sub", '{"a": 1}')]),
    (HERMES, '<tool_call>{"name": "sub"}</tool_call>', "", [("sub", "{}")]),
    (HERMES, "a <tool_cal and <b> < 3", "a <tool_cal and <b> < 3", []),
    (HERMES, "<tool_call>no json</tool_call> then", "<tool_call>no json</tool_call> then", []),
    (HERMES, "<tool_call>cut off", "<tool_call>cut off", []),
    (LLAMA, f"<|python_tag|>{CALL.replace('arguments', 'parameters')}", "", [("sub", ARGUMENTS)]),
    (LLAMA, f"{CALL}; {CALL.replace('sub', 'add')}", "", [("sub", ARGUMENTS), ("add", ARGUMENTS)]),
    (LLAMA, '{"type": "function", "name": "sub", "parameters": {"a": 1}}', "", [("sub", '{"a": 1}')]),
    (LLAMA, '{"name": "Ann", "parameters": {"a": 1}}', '{"name": "Ann", "parameters": {"a": 1}}', []),
    (LLAMA, '{"answer": 42} is it', '{"answer": 42} is it', []),
    (LLAMA, "It is {not} a call", "It is {not} a call", []),
    (DEEPSEEK, V3.format(v3("sub", ARGUMENTS) + "\n" + v3("add", "{}")), "", [("sub", ARGUMENTS), ("add", "{}")]),
    (DEEPSEEK, f"Well.<｜tool▁call▁begin｜>sub<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>", "Well.", [("sub", ARGUMENTS)]),
]  # fmt: skip


@pytest.mark.parametrize(("form", "text", "content", "calls"), TEXTS, ids=lambda value: str(value)[:30])
def test_b90_cuts_make_no_difference(form: ToolFormat, text: str, content: str, calls: list[Any]) -> None:
    """B90: one piece, single characters and random cuts give the same text, names and arguments."""
    for cuts in cuts_of(text):
        assert read(form, cuts) == (content, calls), cuts


def test_arguments_go_out_as_they_come() -> None:
    """What has come of the arguments is told, not kept to the end."""
    parser = ToolCallParser(HERMES, NAMES)
    first, second = parser.push('<tool_call>{"name": "sub", "arguments": {"a": 1')

    assert isinstance(first, CallDelta)
    assert (first.name, first.arguments) == ("sub", "")
    assert second == CallDelta(0, '{"a": 1')


def chat(**fields: Any) -> ChatRequest:
    function = {"name": "sub", "parameters": {"type": "object", "$defs": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/n"}}, "required": ["a"]}}  # fmt: skip
    return convert({"tools": [{"type": "function", "function": function}], **fields}, ChatRequest)


@pytest.fixture(scope="module")
def factory(tmp_path_factory: pytest.TempPathFactory) -> GrammarFactory:
    """A factory for a tokenizer of one id a byte."""
    folder = tmp_path_factory.mktemp("tokenizer")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return GrammarFactory(folder, 257, (256,))


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_required_call_is_what_the_parser_reads(factory: GrammarFactory, name: str) -> None:
    """In each form the grammar of a required call lets nothing but a call be written, which the parser reads."""
    found = read_tools(chat(tool_choice="required", parallel_tool_calls=False), ChatTemplate(TEMPLATES[name], {}))
    assert found is not None
    assert found.grammar is not None
    matcher, output = factory.matcher(found.grammar), b""
    letters = {number: byte for number in range(256) for byte in [factory._prepared().decode_bytes([number])]}
    ids: list[int] = []
    for _ in range(200):
        allowed = matcher.allowed()
        # The digit 1, then what closes, else whatever is the only way on.
        ways = [number for number in range(257) if allowed[number]]
        assert ways
        if ways == [256]:
            break
        chosen = next((n for mark in (b"}", b"1") for n in ways if n < 256 and letters[n] == mark), ways[0])
        ids.append(chosen)
        output += letters[chosen]
        matcher.update(ids, 0)
    content, calls = read(found.form, [output.decode()])

    assert content == ""
    assert [name for name, _ in calls] == ["sub"]
    assert json.loads(calls[0][1]).keys() == {"a"}


@pytest.mark.parametrize(
    ("fields", "template", "words"),
    [
        ({"tools": None, "tool_choice": "required"}, "hermes", "there are no `tools`"),
        ({"tool_choice": "always"}, "hermes", "must be none, auto, required"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "hermes", "none of `tools`"),
        ({"tools": [{"type": "function"}]}, "hermes", "have a `function`"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "hermes", "letters, digits"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": 3}}]}, "hermes", "JSON schema"),
        ({}, "none", "no place for tools"),
    ],
    ids=repr,
)
def test_bad_tools_are_named(fields: dict[str, Any], template: str, words: str) -> None:
    """Tools that cannot be used are a 400 that names field and rule."""
    with pytest.raises(InvalidRequest, match=words):
        read_tools(chat(**fields), ChatTemplate(TEMPLATES.get(template, "{{ messages }}"), {}))


def test_without_tools_nothing_is_looked_for() -> None:
    """No tools, and `tool_choice` none, leave the answer as it is."""
    template = ChatTemplate(TEMPLATES["hermes"], {})

    assert read_tools(chat(tools=None), template) is None
    assert read_tools(chat(tool_choice="none"), template) is None
    assert find_format("{{ messages }}") is None


@pytest.mark.parametrize(
    ("text", "open_", "reasoning", "content"),
    [
        ("<think>\nwhy</think>\n\nanswer", False, "why", "answer"),
        ("why</think>answer", True, "why", "answer"),
        ("answer <think>no</think>", False, "", "answer <think>no</think>"),
        ("<thin ice", False, "", "<thin ice"),
        ("<think>cut o", False, "cut o", ""),
        ('<think>why</think>\n<tool_call>{"name": "sub", "arguments": {}}</tool_call>', False, "why", ""),
    ],
    ids=repr,
)
def test_reasoning_is_told_apart(text: str, open_: bool, reasoning: str, content: str) -> None:
    """Reasoning at the beginning of an answer is apart from its content, for any cuts."""
    for cuts in cuts_of(text):
        reader = ChatPieces(Tools(HERMES, [], NAMES, None), splits=True, open_=open_)
        pieces = [piece for cut in cuts for piece in reader.push(cut)] + reader.push("", is_last=True)

        assert "".join(piece.reasoning for piece in pieces) == reasoning, cuts
        assert "".join(piece.content for piece in pieces) == content, cuts
