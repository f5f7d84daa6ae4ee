"""Tools of a chat request: which functions the model may call, and the grammar of an answer that has to call one."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from ascendd.api.body import shown
from ascendd.api.chat_template import ChatTemplate
from ascendd.api.protocol import ChatRequest
from ascendd.api.structured_output import check_schema, checked_grammar
from ascendd.api.tool_calls import DEEPSEEK, HERMES, ToolFormat
from ascendd.errors import InvalidRequest
from ascendd.ipc.messages import Grammar

MAX_TOOLS = 128
_FUNCTION_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_CHOICES = ("none", "auto", "required")
# As models are taught to write arguments: one line, a space behind comma and colon.
_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@dataclass(frozen=True)
class Tools:
    """`shown` go to the template; `grammar` is there where the answer must be a call."""

    form: ToolFormat
    shown: list[dict[str, Any]]
    names: tuple[str, ...]
    grammar: Grammar | None


def read_tools(request: ChatRequest, template: ChatTemplate) -> Tools | None:
    """Return the tools, None where none may be called. Raises InvalidRequest that names the field."""
    choice = request.tool_choice
    named = _named(choice)
    if not request.tools:
        if named is not None or choice == "required":
            raise InvalidRequest(f"`tool_choice` is {shown(choice)}, but there are no `tools`", param="tool_choice")
        return None
    if len(request.tools) > MAX_TOOLS:
        raise InvalidRequest(f"`tools` has {len(request.tools)} tools, at most {MAX_TOOLS} are taken", param="tools")
    functions = [_function(number, tool) for number, tool in enumerate(request.tools)]
    if choice == "none":
        return None
    if template.tool_format is None:
        raise InvalidRequest(
            "the chat template of this model has no place for tools in a form that is known here "
            "(Hermes and Qwen, Llama 3, DeepSeek); leave out `tools`",
            param="tools",
            openai_code="unsupported_parameter",
        )
    names = tuple(function["name"] for function in functions)
    if named is not None and named not in names:
        raise InvalidRequest(f"`tool_choice` names `{named[:64]}`, which is none of `tools`", param="tool_choice")
    grammar = None
    if named is not None or choice == "required":
        wanted = [function for function in functions if named in (None, function["name"])]
        single = named is not None or request.parallel_tool_calls is False
        grammar = _grammar(template.tool_format, template, wanted, single=single)
    return Tools(template.tool_format, request.tools, names, grammar)


def _named(choice: Any) -> str | None:
    """Return the function that `tool_choice` names."""
    if choice is None or choice in _CHOICES:
        return None
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise InvalidRequest(
            f"`tool_choice` is {shown(choice)}; it must be {', '.join(_CHOICES)}, or name a function: "
            '{"type": "function", "function": {"name": ...}}',
            param="tool_choice",
        )
    return name


def _function(number: int, tool: dict[str, Any]) -> dict[str, Any]:
    where = f"tools[{number}]"
    function = tool.get("function")
    if tool.get("type", "function") != "function" or not isinstance(function, dict):
        raise InvalidRequest(f"`{where}` must be of type `function` and have a `function`", param=where)
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _FUNCTION_NAME.fullmatch(name):
        raise InvalidRequest(
            f"`{where}.function.name` is {shown(name)}; it must be 1 to 64 letters, digits, `_`, `.` or `-`",
            param=f"{where}.function.name",
        )
    if parameters is not None and not isinstance(parameters, dict):
        raise InvalidRequest(
            f"`{where}.function.parameters` is {shown(parameters)}; it must be a JSON schema, an object",
            param=f"{where}.function.parameters",
        )
    check_schema(parameters, f"{where}.function.parameters")
    return function


def _grammar(form: ToolFormat, template: ChatTemplate, functions: list[dict[str, Any]], *, single: bool) -> Grammar:
    """Return the grammar of one call or more, in the form that the model was taught."""
    calls, rules = [], []
    for number, function in enumerate(functions):
        schema = {"type": "object", **(function.get("parameters") or {}), "x-guidance": _LAYOUT}
        rules.append(f"args{number}: %json {json.dumps(schema)}")
        before, after = _around(form, template, function["name"])
        calls.append(f"{_literal(before)} args{number} {_literal(after)}")
    begin, between, end = "", "\n", ""
    if form is DEEPSEEK:
        begin, end = form.ignored
    more = "" if single or not form.opener else f" ({_literal(between)} call)*"
    parts = [_literal(begin)] * bool(begin) + [f"call{more}"] + [_literal(end)] * bool(end)
    text = "\n".join([f"start: {' '.join(parts)}", f"call: {' | '.join(calls)}", *rules])
    return checked_grammar(text, "tools")


def _around(form: ToolFormat, template: ChatTemplate, name: str) -> tuple[str, str]:
    if form is DEEPSEEK:
        if "```json" in template.source:
            return f"{form.opener}function<｜tool▁sep｜>{name}\n```json\n", f"\n```{form.closer}"
        return f"{form.opener}{name}<｜tool▁sep｜>", form.closer
    key = "arguments" if form is HERMES else "parameters"
    before, after = f'{{"name": "{name}", "{key}": ', "}"
    return (f"{form.opener}\n{before}", f"{after}\n{form.closer}") if form.opener else (before, after)


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
