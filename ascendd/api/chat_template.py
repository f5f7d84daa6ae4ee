"""
Messages to one prompt text, by the model's own Jinja template in a sandbox.

Environment and names (raise_exception, strftime_now, tojson, the generation tag) follow what templates of the Hugging
Face hub expect: https://huggingface.co/docs/transformers/chat_templating_writing
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ascendd.api.tool_calls import find_format
from ascendd.errors import InvalidRequest, WeightsCorrupt

# A caller who could set these would replace what was checked, or get something else than text.
RESERVED_NAMES = frozenset(
    {
        "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template",
        "conversation", "tokenize", "return_tensors", "return_dict", "padding", "truncation", "max_length",
        "tokenizer_kwargs", "bos_token", "eos_token", "pad_token", "unk_token", "raise_exception",
        "strftime_now", "self", "loop",
    }
)  # fmt: skip


class ChatTemplate:
    """The template of one model, compiled once; a model without one, or with a broken one, still serves completions."""

    def __init__(self, source: str | None, special_texts: Mapping[str, str]) -> None:
        self._special_texts = dict(special_texts)
        self._template: jinja2.Template | None = None
        self.problem: str | None = None
        self.source = source or ""
        self.tool_format = find_format(self.source)
        self.has_reasoning = "</think>" in self.source or "<think>" in self.source
        if source is None:
            self.problem = "this model has no chat template, use /v1/completions"
            return
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            self.problem = f"the chat template of this model is broken: {error}"

    @classmethod
    def load(cls, folder: Path, config: Mapping[str, Any], special_texts: Mapping[str, str]) -> ChatTemplate:
        """Take chat_template.jinja of `folder`, else `chat_template` of the tokenizer's `config`."""
        path = folder / "chat_template.jinja"
        if path.is_file():
            try:
                return cls(path.read_text(encoding="utf-8"), special_texts)
            except (OSError, UnicodeDecodeError) as error:
                raise WeightsCorrupt(f"{path} cannot be read: {error}", path=str(path)) from error
        return cls(_default_of(config.get("chat_template")), special_texts)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        extra: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """Return the prompt text. Raises InvalidRequest with the template's own words when it refuses."""
        if self._template is None:
            raise InvalidRequest(str(self.problem), param="messages", openai_code="chat_template_missing")
        try:
            return self._template.render(
                **{
                    **self._special_texts,
                    **extra,
                    "messages": messages,
                    "tools": tools,
                    "documents": None,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        # A template is a program over the caller's data: whatever it raises speaks of that data.
        except Exception as error:
            raise InvalidRequest(f"the chat template refused the messages: {error}", param="messages") from error


class GenerationTag(jinja2.ext.Extension):
    """`{% generation %} ... {% endgeneration %}` marks the model's own words in training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012 - the form that the base class has

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Return the body of the tag."""
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().astimezone().strftime(form)
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes <, > and & for HTML; prompts are no HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _default_of(value: Any) -> str | None:
    """Return the template text of a string, or of the one named `default` in a list of named templates."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        chosen = named.get("default")
        return chosen if isinstance(chosen, str) else None
    return None
