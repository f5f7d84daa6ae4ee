"""
GET /status: one static page for operators, and its figures as server-sent events.

A browser sends no key with a first navigation, so page and assets are open and hold no data: the page asks for the key,
keeps it for the tab, and sends it with its request for /status/events, which needs the scope admin.
"""

from __future__ import annotations

from contextlib import aclosing
from importlib import resources

from aiohttp import web

from ascendd.api.service import FRONT, record_of
from ascendd.api.sse import EventStream
from ascendd.errors import AscenddError, ModelUnknown

_FOLDER = resources.files("ascendd.api") / "status_page"
# The assets by name, each with its type; nothing else is ever read.
ASSETS = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "charts.js": "text/javascript",
    "stream.js": "text/javascript",
    "texts.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_KEYS_MARK = 'data-keys="none"'
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


async def show_status(request: web.Request) -> web.Response:
    """Answer with the page; it says whether the daemon asks for keys, and nothing else of the instance."""
    text = (_FOLDER / "index.html").read_text(encoding="utf-8")
    if request.app[FRONT].authenticator.has_keys:
        text = text.replace(_KEYS_MARK, 'data-keys="required"')
    return web.Response(text=text, content_type="text/html", headers=_HEADERS)


async def show_asset(request: web.Request) -> web.Response:
    """Answer with one of ASSETS."""
    name = request.match_info["name"]
    if name not in ASSETS:
        raise ModelUnknown(f"/status/{name[:64]} does not exist", openai_code="not_found")
    return web.Response(
        body=(_FOLDER / name).read_bytes(), content_type=ASSETS[name], charset="utf-8", headers=_HEADERS
    )


async def stream_status(request: web.Request) -> web.StreamResponse:
    """Send `status` each second and `history` with each new point, until the viewer leaves or its key is revoked."""
    service = request.app[FRONT]
    events = EventStream(request)
    history = b""
    async with aclosing(service.status.reports()) as reports:
        async for report in reports:
            try:
                service.authenticator.check(request.path, request.headers.get("Authorization"))
            except AscenddError:
                if events.started:
                    break
                raise
            if not events.started:
                await events.start({"X-Request-Id": record_of(request).request_id})
            if report is None:
                await events.send_comment("alive")
                continue
            if report.history_json != history:
                history = report.history_json
                await events.send_event("history", history)
            await events.send_event("status", report.status_json)
    if not events.started:
        await events.start({"X-Request-Id": record_of(request).request_id})
    return events.response
