"""The routes of an engine with an HTTP server of its own, behind our keys and admission."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from ascendd.api.body import decode_object
from ascendd.api.proxy_service import ProxyService
from ascendd.errors import InvalidRequest

PROXY: web.AppKey[ProxyService] = web.AppKey("proxy", ProxyService)
# What generates or reads text; paths that change or profile the engine are not among them.
PATHS = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/rerank",
    "/v1/score", "/tokenize", "/detokenize",
)  # fmt: skip
_MAX_SEQUENCES = 1024


def add_proxied(app: web.Application, service: ProxyService) -> None:
    """Register the routes."""
    app[PROXY] = service
    for path in PATHS:
        app.router.add_post(path, forward)


async def forward(request: web.Request) -> web.StreamResponse:
    """Answer through the engine. Raises ModelUnknown, QueueFull and what else admission refuses with."""
    service = request.app[PROXY]
    await service.admit(request)
    raw = decode_object(await service.read_body(request))
    name = raw.get("model")
    if name is not None and not isinstance(name, str):
        raise InvalidRequest("`model` must be a string", param="model")
    service.check_model(name)
    return await service.forward(request, raw, num_sequences(raw))


def num_sequences(raw: dict[str, Any]) -> int:
    """Return how many sequences `raw` asks for: prompts x n. Raises InvalidRequest for an n that is none."""
    prompt, count = raw.get("prompt"), raw.get("n")
    if count is None:
        count = 1
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MAX_SEQUENCES:
        raise InvalidRequest(f"`n` must be a whole number from 1 to {_MAX_SEQUENCES}", param="n")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
        return count * len(prompt)
    return count
