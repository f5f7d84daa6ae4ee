"""Grammars as masks: what fits stays possible, what does not never is, and what cannot be compiled is named."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from ascendd.api.protocol import CompletionRequest
from ascendd.api.structured_output import read_grammar
from ascendd.errors import InvalidRequest
from ascendd.grammar.matcher import GrammarFactory
from ascendd.ipc.messages import Grammar

VOCAB, EOS = 300, 256


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
    return GrammarFactory(folder, VOCAB, (EOS,))


def ids_of(factory: GrammarFactory, text: str) -> list[int]:
    return list(factory._prepared().tokenize_str(text))


def grammar_of(**fields: object) -> Grammar:
    grammar = read_grammar(CompletionRequest(**fields))  # type: ignore[arg-type]
    assert grammar is not None
    return grammar


PERSON = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"guided_choice": ["yes", "no (really)"]}, "no (really)"),
        ({"guided_regex": "[a-c]{3}-[0-9]+"}, "abc-12"),
        ({"guided_json": PERSON}, '{"age": 12}'),
        ({"guided_json": json.dumps(PERSON)}, '{"age":12}'),
        ({"structured_outputs": {"json": PERSON}}, '{"age": -3}'),
        ({"response_format": {"type": "json_object"}}, '{"a": [1, {"b": null}]}'),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}}, '{"age": 1}'),
    ],
    ids=["choice", "regex", "json", "json text", "structured_outputs", "json_object", "json_schema"],
)
def test_a_text_that_fits_can_be_written_and_ends(factory: GrammarFactory, fields: dict, text: str) -> None:
    """Each token of a text that fits is allowed in turn, then the end is; a stray letter and an early end are not."""
    matcher = factory.matcher(grammar_of(**fields))
    prompt = [5, 6]
    stray = ids_of(factory, "~")[0]
    output: list[int] = []
    for token_id in ids_of(factory, text):
        matcher.update(prompt + output, len(prompt))
        allowed = matcher.allowed()
        assert allowed.shape == (VOCAB,)
        assert allowed[token_id]
        assert not allowed[EOS] or text.startswith(("abc-", "no"))
        assert not allowed[257:].any()
        output.append(token_id)
        if len(output) == 1:
            assert not allowed[stray]
    matcher.update(prompt + output, len(prompt))

    assert matcher.allowed()[EOS]


def test_sequences_of_one_grammar_do_not_disturb_each_other(factory: GrammarFactory) -> None:
    """Two matchers of one grammar stand where their own sequences are."""
    grammar = grammar_of(guided_choice=["ab", "cd"])
    first, second = factory.matcher(grammar), factory.matcher(grammar)
    a, c = ids_of(factory, "a")[0], ids_of(factory, "c")[0]
    first.update([a], 0)

    assert not first.allowed()[c]
    assert second.allowed()[c]
    assert factory.knows(grammar)


def test_a_token_that_leaves_the_grammar_leaves_nothing(factory: GrammarFactory) -> None:
    """Behind a token that does not fit nothing is allowed, and nothing raises."""
    matcher = factory.matcher(grammar_of(guided_choice=["ab"]))
    matcher.update(ids_of(factory, "x"), 0)

    assert not matcher.allowed().any()


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_json": {"type": "not-a-type"}},
        {"guided_json": {"$ref": "#"}},
        {"guided_json": {"$ref": "#/nowhere"}},
        {"guided_json": {"type": "string", "pattern": "(?=x)y"}},
        {"guided_json": {"type": "integer", "minimum": 5, "maximum": 4}},
        {"guided_regex": "(a"},
        {"guided_regex": "(" * 100_000},
        {"guided_json": {"allOf": [{"anyOf": [{"properties": {f"p{i}": {"const": j}}} for j in range(4)]} for i in range(6)]}},
    ],
    ids=["B81 type", "B82 ref to itself", "ref to nothing", "B82 pattern", "empty range", "regex", "deep regex", "explosion"],
)  # fmt: skip
def test_b82_what_cannot_be_compiled_is_named(factory: GrammarFactory, fields: dict) -> None:
    """B81, B82: a schema or pattern that cannot be compiled, or that nothing fits, is refused in one line, each time."""
    grammar = grammar_of(**fields)
    messages = set()
    for _ in range(2):
        with pytest.raises(InvalidRequest) as caught:
            factory.matcher(grammar)
        messages.add(caught.value.message)

    assert len(messages) == 1
    message = messages.pop()
    assert message.startswith(f"`{next(iter(fields))}` cannot be used: ")
    assert "\n" not in message
    assert len(message) < 400
    assert caught.value.param == next(iter(fields))
