"""Which form a request holds its answer to: response_format, structured_outputs, and vLLM's older guided_* fields."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from llguidance import LLMatcher

from ascendd.api.body import shown
from ascendd.api.protocol import SamplingFields
from ascendd.errors import InvalidRequest
from ascendd.ipc.messages import Grammar

MAX_GRAMMAR_CHARS = 256 * 1024
# Definitions that refer to one another are compiled by recursion, and thousands in a row would end the stack.
MAX_REFERENCES = 256
# White space between tokens of JSON is bounded: an endless run of it would be an answer that never ends.
_WHITESPACE = r"[\x20\x0A\x09]{0,32}"
_KINDS = ("json", "regex", "choice", "json_object")
_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})

_Asked = tuple[str, str, Any]


def read_grammar(fields: SamplingFields) -> Grammar | None:
    """
    Return the grammar of the answer, None where it is free.

    Raises InvalidRequest that names the field; whether the grammar can be compiled is found out later.
    """
    asked = [item for item in (_from_format(fields), *_from_fields(fields)) if item is not None]
    if not asked:
        return None
    if len(asked) > 1:
        names = " and ".join(f"`{param}`" for param, _, _ in asked)
        raise InvalidRequest(f"{names} each name a form of the answer; give one", param=asked[1][0])
    param, kind, value = asked[0]
    if fields.ignore_eos:
        raise InvalidRequest("`ignore_eos` is true; an answer in a form ends where the form does", param="ignore_eos")
    return checked_grammar(_grammar_text(param, kind, value), param)


def checked_grammar(text: str, param: str) -> Grammar:
    """Return `text` as the grammar that the field `param` asked for. Raises InvalidRequest where it is too long."""
    if len(text) > MAX_GRAMMAR_CHARS:
        raise InvalidRequest(
            f"`{param}` makes a grammar of {len(text)} characters, at most {MAX_GRAMMAR_CHARS} are taken", param=param
        )
    return Grammar(text, param)


def check_schema(schema: Any, param: str) -> None:
    """Raise InvalidRequest for a schema that no compiler should be given."""
    targets: set[str] = set()
    try:
        for key, value in _pairs(schema):
            if key in _REFERENCES:
                targets.add(str(value))
    except RecursionError:
        raise InvalidRequest(f"`{param}` holds a schema that is nested too deeply", param=param) from None
    if len(targets) > MAX_REFERENCES:
        raise InvalidRequest(
            f"`{param}` refers to {len(targets)} different definitions, at most {MAX_REFERENCES} are taken", param=param
        )


def _pairs(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield key, item
            yield from _pairs(item)
    elif isinstance(value, list):
        for item in value:
            yield from _pairs(item)


def _json_grammar(schema: Any, param: str) -> str:
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):
            raise InvalidRequest(f"`{param}` is {shown(schema)}; it must be a JSON schema", param=param) from None
    if not isinstance(schema, (dict, bool)):
        raise InvalidRequest(f"`{param}` is {shown(schema)}; it must be a JSON schema, an object", param=param)
    check_schema(schema, param)
    try:
        text: str = LLMatcher.grammar_from_json_schema(
            json.dumps(schema), overrides={"whitespace_pattern": _WHITESPACE}
        )
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if "recursion" in str(error) else str(error)
        raise InvalidRequest(f"`{param}` holds no JSON schema that can be used: {reason}", param=param) from None
    return text


def _from_format(fields: SamplingFields) -> _Asked | None:
    form = fields.response_format
    if form is None:
        return None
    kind = form.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return "response_format", "json_object", None
    if kind != "json_schema":
        raise InvalidRequest(
            f"`response_format.type` is {shown(kind)}; known: text, json_object, json_schema", param="response_format"
        )
    described = form.get("json_schema")
    schema = described.get("schema") if isinstance(described, dict) else None
    if not isinstance(schema, dict):
        raise InvalidRequest(
            f"`response_format.json_schema.schema` is {shown(schema)}; it must be a JSON schema, an object",
            param="response_format",
        )
    return "response_format", "json", schema


def _from_fields(fields: SamplingFields) -> list[_Asked]:
    asked: list[_Asked] = [
        (f"guided_{kind}", kind, value)
        for kind in ("json", "regex", "choice")
        if (value := getattr(fields, f"guided_{kind}")) is not None
    ]
    for kind, value in (fields.structured_outputs or {}).items():
        if value is None or (kind == "json_object" and value is False):
            continue
        if kind not in _KINDS:
            raise InvalidRequest(
                f"`structured_outputs.{kind[:40]}` is not supported; known: {', '.join(_KINDS)}",
                param="structured_outputs",
            )
        asked.append(("structured_outputs", kind, value))
    return asked


def _grammar_text(param: str, kind: str, value: Any) -> str:
    if kind == "json_object":
        return _json_grammar({"type": "object"}, param)
    if kind == "json":
        return _json_grammar(value, param)
    if kind == "choice":
        if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
            raise InvalidRequest(f"`{param}` is {shown(value)}; it must be a list of texts", param=param)
        value = "|".join(re.escape(item) for item in value)
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"`{param}` is {shown(value)}; it must be a text", param=param)
    text: str = LLMatcher.grammar_from_regex(value)
    return text
