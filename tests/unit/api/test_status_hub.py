"""Viewers of the status page: the supervisor reports while there is one, and no more."""

from __future__ import annotations

import asyncio

import pytest

from ascendd.api import status_hub
from ascendd.api.auth import Authenticator, is_open
from ascendd.api.routes_status import ASSETS
from ascendd.api.status_hub import MAX_VIEWERS, StatusHub
from ascendd.config.credentials import Credential, digest_of
from ascendd.errors import ActionForbidden, AuthenticationFailed, QueueFull
from ascendd.ipc.messages import StatusReport


def test_reports_are_wanted_while_somebody_watches() -> None:
    """The first viewer turns reports on and the last one off; one that comes later sees the last report at once."""
    wanted: list[bool] = []

    async def work() -> list[bytes]:
        hub = StatusHub()
        hub.on_wanted = wanted.append
        first, second = hub.reports(), hub.reports()
        waiting = asyncio.ensure_future(anext(first))
        await asyncio.sleep(0)
        hub.take(StatusReport(b"1", b""))
        seen = [await waiting, await anext(second)]
        await first.aclose()
        assert wanted == [True]
        await second.aclose()
        return [report.status_json for report in seen if report is not None]

    assert asyncio.run(work()) == [b"1", b"1"]
    assert wanted == [True, False]


def test_silence_is_told_and_the_end_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a report a viewer gets None now and then, and nothing more after close."""
    monkeypatch.setattr(status_hub, "KEEP_ALIVE_S", 0.01)

    async def work() -> list[StatusReport | None]:
        hub = StatusHub()
        seen: list[StatusReport | None] = []
        async for report in hub.reports():
            seen.append(report)
            hub.close()
        return seen

    assert asyncio.run(work()) == [None]


def test_viewers_are_bounded() -> None:
    """One more than MAX_VIEWERS is refused, and the others stay."""

    async def work() -> None:
        hub = StatusHub()
        viewers = [hub.reports() for _ in range(MAX_VIEWERS)]
        waiting = [asyncio.ensure_future(anext(viewer)) for viewer in viewers]
        await asyncio.sleep(0)
        with pytest.raises(QueueFull):
            await anext(hub.reports())
        hub.take(StatusReport(b"1", b""))
        assert len(await asyncio.gather(*waiting)) == MAX_VIEWERS
        for viewer in viewers:
            await viewer.aclose()

    asyncio.run(work())


def test_the_shell_is_open_and_its_figures_are_for_admins() -> None:
    """Page and assets need no key; the stream needs the scope admin, and no path beside them is open."""
    keys = [Credential("app", digest_of("infer"), frozenset({"infer"})), Credential("ops", digest_of("admin"))]
    authenticator = Authenticator(keys)

    assert all(is_open(path) for path in ("/status", *(f"/status/{name}" for name in ASSETS)))
    assert not any(
        is_open(path) for path in ("/status/events", "/status/../v1/models", "/status/a/page.js", "/statusx")
    )
    with pytest.raises(AuthenticationFailed):
        authenticator.check("/status/events", None)
    with pytest.raises(ActionForbidden):
        authenticator.check("/status/events", "Bearer infer")
    assert authenticator.check("/status/events", "Bearer admin") is keys[1]
