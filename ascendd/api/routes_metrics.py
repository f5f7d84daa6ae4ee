"""GET /metrics on the API's own address, for scrapers of other hosts: with a key of the scope `metrics` only."""

from __future__ import annotations

import asyncio

import aiohttp
from aiohttp import web

from ascendd.api.service import FRONT
from ascendd.errors import ActionForbidden, EngineRestarting

_TIMEOUT = aiohttp.ClientTimeout(total=10.0)
_KEPT = ("Content-Type", "Retry-After")


async def show_metrics(request: web.Request) -> web.Response:
    """
    Answer what the metrics process of this instance answers on its loopback listener.

    Raises ActionForbidden where no keys are configured or metrics are off, EngineRestarting while that process is away.
    """
    config = request.app[FRONT].config
    if config.listen.api_key_file is None:
        raise ActionForbidden(
            "without keys /metrics is served on its loopback listener alone",
            remedy="Set listen.api_key_file and ask with a key of the scope `metrics`, or scrape metrics.port there.",
        )
    section = config.metrics
    if not section.enabled:
        raise ActionForbidden("metrics are off on this instance", remedy="Set metrics.enabled: true.")
    host = f"[{section.host}]" if ":" in section.host else section.host
    headers = {"Accept": request.headers["Accept"]} if "Accept" in request.headers else {}
    try:
        async with (
            aiohttp.ClientSession(timeout=_TIMEOUT) as session,
            session.get(f"http://{host}:{section.port}/metrics", headers=headers) as page,
        ):
            body = await page.read()
            kept = {name: page.headers[name] for name in _KEPT if name in page.headers}
            return web.Response(body=body, status=page.status, headers={**kept, "Cache-Control": "no-store"})
    except (aiohttp.ClientError, asyncio.TimeoutError, TimeoutError, OSError) as error:
        raise EngineRestarting(f"the metrics process does not answer: {type(error).__name__}") from error
