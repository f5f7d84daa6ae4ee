"""GET /livez, /readyz and /health: open without a key, so they carry no names, no versions and no figures."""

from __future__ import annotations

import msgspec
from aiohttp import web

from ascendd.api.errors import retry_after_s
from ascendd.api.service import FRONT
from ascendd.errors import RequestError


async def livez(_request: web.Request) -> web.Response:
    """Answer 200: the event loop runs."""
    return _json(200, {"status": "alive"})


async def readyz(request: web.Request) -> web.Response:
    """
    Answer 200 when a request sent now would be served, else 503 with the reason. Also /health.

    Behind a 200 stands a token that the engine computed at most 5 s ago, beside all requests. An instance that serves
    without something, such as a part of its KV cache, says so.
    """
    try:
        service = request.app[FRONT]
        admission = service.admission
        admission.check_ready()
        await service.engine.probe.check()
        admission.check_ready()
    except RequestError as error:
        response = _json(error.http_status, {"status": "unavailable", "reason": error.message})
        response.headers["Retry-After"] = str(retry_after_s(error) or 1)
        return response
    if admission.engine_state.degraded:
        return _json(200, {"status": "degraded", "reason": admission.engine_state.degraded})
    return _json(200, {"status": "ready"})


def _json(status: int, value: dict[str, str]) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value),
        status=status,
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )
