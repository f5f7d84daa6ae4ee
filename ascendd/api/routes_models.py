"""GET /v1/models and /v1/models/{model}."""

from __future__ import annotations

import msgspec
from aiohttp import web

from ascendd.api.protocol import ModelCard, ModelList
from ascendd.api.service import FRONT, FrontService


async def list_models(request: web.Request) -> web.Response:
    """Answer with the model of this instance and its adapters."""
    service = request.app[FRONT]
    return _json(ModelList([_card(service, name) for name in (service.model_name, *service.adapters.names)]))


async def show_model(request: web.Request) -> web.Response:
    """Answer with one model. Raises ModelUnknown."""
    service = request.app[FRONT]
    return _json(_card(service, service.check_model(request.match_info["model"])))


def _card(service: FrontService, name: str) -> ModelCard:
    hello = service.engine.hello
    return ModelCard(
        id=name,
        created=service.started_unix_s,
        # Never the path of the folder: who may ask for a model need not know the disk.
        root=name,
        parent=None if name == service.model_name else service.model_name,
        max_model_len=None if hello is None else hello.max_model_len,
    )


def _json(value: msgspec.Struct) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
