"""The aiohttp application and its life on an inherited listening socket."""

from __future__ import annotations

import socket

from aiohttp import hdrs, web

from ascendd.api.middleware import observe
from ascendd.api.openapi import show_document
from ascendd.api.proxy_service import ProxyService
from ascendd.api.routes_adapters import load_adapter, unload_adapter
from ascendd.api.routes_chat import create_chat_completion
from ascendd.api.routes_completions import create_completion
from ascendd.api.routes_metrics import show_metrics
from ascendd.api.routes_models import list_models, show_model
from ascendd.api.routes_ops import livez, readyz
from ascendd.api.routes_proxied import add_proxied
from ascendd.api.routes_status import show_asset, show_status, stream_status
from ascendd.api.routes_tokens import detokenize, refuse_embeddings, tokenize
from ascendd.api.service import FRONT, SERVICE, ApiService, FrontService
from ascendd.api.wire import JsonRunner

_BACKLOG = 1024
# Shutdown comes after the drain, so nothing worth waiting for is left.
_SHUTDOWN_TIMEOUT_S = 1.0


def build_app(service: FrontService) -> web.Application:
    """Return the application; all but the probes and the empty status page needs a key where keys are configured."""
    app = web.Application(middlewares=[observe], client_max_size=service.max_body_bytes)
    app[FRONT] = service
    app.on_response_prepare.append(_hide_software)
    if isinstance(service, ProxyService):
        add_proxied(app, service)
    elif isinstance(service, ApiService):
        _add_own_engine(app, service)
    app.router.add_get("/v1/models", list_models)
    app.router.add_get("/v1/models/{model:.+}", show_model)
    app.router.add_get("/metrics", show_metrics)
    app.router.add_get("/livez", livez)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/health", readyz)
    app.router.add_get("/status", show_status)
    app.router.add_get("/status/events", stream_status)
    app.router.add_get("/status/{name}", show_asset)
    return app


def _add_own_engine(app: web.Application, service: ApiService) -> None:
    app[SERVICE] = service
    app.router.add_post("/v1/chat/completions", create_chat_completion)
    app.router.add_post("/v1/completions", create_completion)
    app.router.add_post("/v1/load_lora_adapter", load_adapter)
    app.router.add_post("/v1/unload_lora_adapter", unload_adapter)
    app.router.add_post("/v1/embeddings", refuse_embeddings)
    app.router.add_post("/tokenize", tokenize)
    app.router.add_post("/detokenize", detokenize)
    app.router.add_get("/openapi.json", show_document)


async def _hide_software(_request: web.Request, response: web.StreamResponse) -> None:
    # The probes are open to everybody and tell nobody which versions run here.
    response.headers.pop(hdrs.SERVER, None)


class Server:
    """Serves `service` on `listener` from `start` to `stop`."""

    def __init__(self, service: FrontService, listener: socket.socket) -> None:
        self._listener = listener
        self._tls = service.tls
        # A client that goes away cancels its handler, and leaving the handler aborts its sequences.
        self._runner = JsonRunner(
            build_app(service), handler_cancellation=True, access_log=None, shutdown_timeout=_SHUTDOWN_TIMEOUT_S
        )

    async def start(self) -> None:
        """Accept connections."""
        await self._runner.setup()
        await web.SockSite(
            self._runner,
            self._listener,
            backlog=_BACKLOG,
            ssl_context=None if self._tls is None else self._tls.context,
        ).start()

    async def stop(self) -> None:
        """Stop accepting, cut what is left and return."""
        await self._runner.cleanup()
