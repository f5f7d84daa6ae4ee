"""Which field names the form of an answer, and what no compiler should be given."""

from __future__ import annotations

from typing import Any

import pytest

from ascendd.api.body import convert
from ascendd.api.protocol import ChatRequest
from ascendd.api.structured_output import MAX_REFERENCES, read_grammar
from ascendd.errors import InvalidRequest


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def chain(length: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(length)}
    return {"$defs": {**definitions, f"d{length}": {"type": "string"}}, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize(
    "fields",
    [{}, {"response_format": {"type": "text"}}, {"structured_outputs": {}}, {"structured_outputs": {"json": None}}],
    ids=repr,
)
def test_free_answer_has_no_grammar(fields: dict[str, Any]) -> None:
    """Without a form asked for there is no grammar."""
    assert read_grammar(convert(fields, ChatRequest)) is None


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": {"type": "xml"}}, "response_format", "known: text, json_object, json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "must be a JSON schema"),
        ({"guided_json": 7}, "guided_json", "is 7"),
        ({"guided_json": "{"}, "guided_json", "must be a JSON schema"),
        ({"guided_json": nested(900)}, "guided_json", "nested too deeply"),
        ({"guided_json": '{"items":' * 5000 + "{}" + "}" * 5000}, "guided_json", "must be a JSON schema"),
        ({"guided_json": chain(3000)}, "guided_json", f"at most {MAX_REFERENCES}"),
        ({"guided_choice": []}, "guided_choice", "list of texts"),
        ({"guided_choice": ["a", ""]}, "guided_choice", "list of texts"),
        ({"guided_regex": ""}, "guided_regex", "must be a text"),
        ({"guided_regex": "a" * 300_000}, "guided_regex", "characters"),
        ({"structured_outputs": {"grammar": "start: x"}}, "structured_outputs", "known: json, regex, choice"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "give one"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos", "ends where the form does"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_names_no_form_is_refused(fields: dict[str, Any], param: str, words: str) -> None:
    """B82: a form that is no form is a 400 that names field and rule; depth and length are bounded before any compiler."""
    with pytest.raises(InvalidRequest, match=words) as caught:
        read_grammar(convert(fields, ChatRequest))

    assert caught.value.param == param
