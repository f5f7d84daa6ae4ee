"""GET /v1/models and /v1/models/{model}."""

from __future__ import annotations

import msgspec
from aiohttp import web

from ascendd.api.protocol import ModelCard, ModelList
from ascendd.api.service import SERVICE, ApiService


async def list_models(request: web.Request) -> web.Response:
    """Answer with the one model of this instance."""
    return _json(ModelList([_card(request.app[SERVICE])]))


async def show_model(request: web.Request) -> web.Response:
    """Answer with one model. Raises ModelUnknown."""
    service = request.app[SERVICE]
    service.check_model(request.match_info["model"])
    return _json(_card(service))


def _card(service: ApiService) -> ModelCard:
    hello = service.engine.hello
    return ModelCard(
        id=service.model_name,
        created=service.started_unix_s,
        root=service.model_name,
        max_model_len=None if hello is None else hello.max_model_len,
    )


def _json(value: msgspec.Struct) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
