"""The OpenAPI document of GET /openapi.json, made of the Structs that bodies are read into."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from ascendd import __version__
from ascendd.api.auth import OPEN_PATHS
from ascendd.api.auth import is_open as is_open_path
from ascendd.api.protocol import (
    ChatChoice,
    ChatRequest,
    CompletionChoice,
    CompletionRequest,
    DetokenizeAnswer,
    DetokenizeRequest,
    LoadAdapterRequest,
    ModelCard,
    ModelList,
    TokenizeAnswer,
    TokenizeRequest,
    UnloadAdapterRequest,
    Usage,
)

_REFERENCE = "#/components/schemas/{name}"
_COMMON = (400, 401, 403, 404, 405, 413, 429, 500, 503, 504)
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


class Completion(msgspec.Struct):
    """A whole answer of completions."""

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class ChatCompletion(msgspec.Struct):
    """A whole answer of chats."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


@dataclass(frozen=True)
class _Operation:
    """One method of one path; `body` and `answer` are Structs, `streams` says that events may come instead."""

    method: str
    path: str
    summary: str
    body: type[msgspec.Struct] | None = None
    answer: type[msgspec.Struct] | None = None
    streams: bool = False
    refuses: bool = False
    media: str = "application/json"


OPERATIONS = (
    _Operation("post", "/v1/chat/completions", "Answer a conversation", ChatRequest, ChatCompletion, streams=True),
    _Operation("post", "/v1/completions", "Continue prompts", CompletionRequest, Completion, streams=True),
    _Operation("post", "/v1/load_lora_adapter", "Load a LoRA adapter", LoadAdapterRequest),
    _Operation("post", "/v1/unload_lora_adapter", "Unload a LoRA adapter", UnloadAdapterRequest),
    _Operation("post", "/v1/embeddings", "Refused: a text generator makes no embeddings", refuses=True),
    _Operation("post", "/tokenize", "Token ids of a text or a conversation", TokenizeRequest, TokenizeAnswer),
    _Operation("post", "/detokenize", "The text of token ids", DetokenizeRequest, DetokenizeAnswer),
    _Operation("get", "/v1/models", "The model and its adapters", answer=ModelList),
    _Operation("get", "/v1/models/{model}", "One of them", answer=ModelCard),
    _Operation("get", "/openapi.json", "This document"),
    _Operation("get", "/metrics", "The instance's metrics in Prometheus' form", media="text/plain"),
    _Operation("get", "/livez", "Whether the process answers"),
    _Operation("get", "/readyz", "Whether a request sent now would be served"),
    _Operation("get", "/health", "The same as /readyz"),
    _Operation("get", "/status", "The status page for browsers, without its figures", media="text/html"),
    _Operation("get", "/status/{name}", "A style sheet, script or picture of the status page", media="text/css"),
    _Operation("get", "/status/events", "The figures of the status page, as they come", media="text/event-stream"),
)


@functools.cache
def document() -> dict[str, Any]:
    """Return the document."""
    kinds = {kind for item in OPERATIONS for kind in (item.body, item.answer) if kind is not None}
    ordered = sorted(kinds, key=lambda kind: kind.__name__)
    references, components = msgspec.json.schema_components(ordered, ref_template=_REFERENCE)
    schemas = dict(zip(ordered, references, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for item in OPERATIONS:
        paths.setdefault(item.path, {})[item.method] = _operation(item, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "ascendd", "version": __version__, "description": "OpenAI-compatible API of one instance"},
        "paths": paths,
        "components": {
            "schemas": {**components, "Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


async def show_document(_request: web.Request) -> web.Response:
    """Answer with the document."""
    return web.Response(body=msgspec.json.encode(document()), content_type="application/json")


def _operation(item: _Operation, schemas: dict[type[msgspec.Struct], dict[str, Any]]) -> dict[str, Any]:
    is_open = is_open_path(item.path.replace("{name}", "page.css"))
    schema = schemas[item.answer] if item.answer else {} if item.media == "application/json" else {"type": "string"}
    answers: dict[str, Any] = {}
    if not item.refuses:
        content: dict[str, Any] = {item.media: {"schema": schema}}
        if item.streams:
            content["text/event-stream"] = {"schema": {"type": "string"}}
        answers["200"] = {"description": "Done", "content": content}
    if item.path in OPEN_PATHS:
        answers["503"] = {"description": "Not now", "content": {"application/json": {"schema": {}}}}
    # A path with a name in it is open for the names that exist: another one is asked for a key, then not found.
    open_statuses = (400, 401, 404, 500) if "{" in item.path else (400, 500)
    for status in open_statuses if is_open else _COMMON:
        answers[str(status)] = {
            "description": "An error",
            "content": {"application/json": {"schema": {"$ref": _REFERENCE.format(name="Error")}}},
        }
    made: dict[str, Any] = {
        "summary": item.summary,
        "security": [] if is_open else [{"key": []}, {}],
        "responses": answers,
    }
    for name in re.findall(r"{(\w+)}", item.path):
        made["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}]
    if item.body is not None:
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": schemas[item.body]}}}
    return made
