"""AdapterClient: answers find their orders, a fresh engine is told what changed; and which paths may be loaded."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path

import pytest

from ascendd.api.adapter_client import AdapterClient, Order
from ascendd.api.routes_adapters import allowed_path
from ascendd.errors import ActionForbidden, AdapterInvalid, DeadlineExceeded, EngineRestarting, InvalidRequest
from ascendd.ipc.messages import AdapterResult, Fault, LoadAdapter, UnloadAdapter


class Engine:
    """Answers orders at once, on demand, or not at all."""

    def __init__(self, names: tuple[str, ...] = ()) -> None:
        self.names = list(names)
        self.orders: list[Order] = []
        self.client = AdapterClient(self.obey, names, 5.0)
        self.answers: Callable[[Order], Fault | None] | None = lambda _: None

    def obey(self, order: Order) -> None:
        self.orders.append(order)
        if self.answers is None:
            return
        fault = self.answers(order)
        if fault is None and isinstance(order, LoadAdapter):
            self.names.append(order.name)
        elif fault is None:
            self.names.remove(order.name)
        result = AdapterResult(order.ticket, tuple(self.names), fault)
        asyncio.get_running_loop().call_soon(self.client.take, result)


def test_names_follow_the_engine() -> None:
    """What is loaded is known, what is unloaded is not any more."""

    async def scene() -> list[tuple[str, ...]]:
        engine = Engine(("a",))
        seen = [engine.client.names]
        await engine.client.load("b", "/b")
        seen.append(engine.client.names)
        await engine.client.unload("a")
        return [*seen, engine.client.names]

    assert asyncio.run(scene()) == [("a",), ("a", "b"), ("b",)]


def test_the_engine_s_reason_is_raised() -> None:
    """A refused adapter is the engine's own error, and changes no name."""

    async def scene() -> tuple[str, tuple[str, ...]]:
        engine = Engine()
        engine.answers = lambda _: Fault.from_error(AdapterInvalid("rank 65"))
        with pytest.raises(AdapterInvalid, match="rank 65") as caught:
            await engine.client.load("b", "/b")
        return caught.value.code, engine.client.names

    assert asyncio.run(scene()) == ("ASD-M07", ())


def test_a_fresh_engine_is_told_what_changed() -> None:
    """Only the differences are sent, and the names are known before they are confirmed."""

    async def scene() -> tuple[list[tuple[type, str]], tuple[str, ...], tuple[str, ...]]:
        engine = Engine(("a", "c"))
        await engine.client.load("b", "/b")
        await engine.client.load("d", "/d")
        await engine.client.unload("a")
        engine.client.lost("the engine ended")
        engine.names, engine.orders = ["a", "c"], []
        engine.answers = lambda order: Fault.from_error(AdapterInvalid("gone")) if order.name == "d" else None
        engine.client.attached(("a", "c"))
        before = engine.client.names
        await asyncio.sleep(0)
        return [(type(order), order.name) for order in engine.orders], before, engine.client.names

    orders, before, after = asyncio.run(scene())
    assert orders == [(LoadAdapter, "b"), (LoadAdapter, "d"), (UnloadAdapter, "a")]
    assert before == ("c", "b", "d")
    assert after == ("c", "b")


def test_an_order_that_nobody_answers_fails() -> None:
    """A lost engine and a deadline end the wait; the answer that comes late is still taken."""

    async def scene() -> tuple[str, ...]:
        engine = Engine()
        engine.answers = None
        waiting = asyncio.ensure_future(engine.client.load("a", "/a"))
        await asyncio.sleep(0)
        engine.client.lost("the engine ended")
        with pytest.raises(EngineRestarting):
            await waiting
        engine.client._timeout_s = 0.01
        with pytest.raises(DeadlineExceeded):
            await engine.client.load("b", "/b")
        engine.client.take(AdapterResult(engine.orders[-1].ticket, ("b",)))
        return engine.client.names

    assert asyncio.run(scene()) == ("b",)


def test_an_order_whose_client_left_leaves_no_error_behind() -> None:
    """An engine that is lost after the client has gone fails no future that nobody awaits."""
    told: list[str] = []

    async def scene() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))
        engine = Engine()
        engine.answers = None
        waiting = asyncio.ensure_future(engine.client.load("a", "/a"))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
        engine.client.lost("the engine ended")
        del engine, waiting
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(scene())

    assert told == []


def test_without_a_root_nothing_is_allowed() -> None:
    """Deny by default, naming the setting."""
    with pytest.raises(ActionForbidden, match=r"model\.adapter_root is not set"):
        allowed_path("/adapters/a", None)


def test_paths_below_the_root_are_allowed(tmp_path: Path) -> None:
    """Absolute, relative and by a link inside; the answer has no link in it."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "root").symlink_to(tmp_path)
    expected = str((tmp_path / "real").resolve())

    for written in ("real", "link", str(tmp_path / "real"), "x/../real"):
        assert allowed_path(written, str(tmp_path / "root")) == expected


@pytest.mark.parametrize("written", ["..", ".", "/", "../x", "a/../../x", "/etc/passwd", "away/x"])
def test_paths_that_lead_out_are_not(tmp_path: Path, written: str) -> None:
    """Dots, other roots and links out of it; the root itself is no adapter."""
    (tmp_path / "away").symlink_to("/usr")
    with pytest.raises(ActionForbidden, match="does not lie below"):
        allowed_path(written, str(tmp_path))


def test_what_is_no_path_is_refused(tmp_path: Path) -> None:
    """NUL is no part of a path."""
    with pytest.raises(InvalidRequest, match="is not a path"):
        allowed_path("a\0b", str(tmp_path))


def test_a_changed_configuration_is_followed() -> None:
    """Removed adapters go, new ones come, a moved one is read anew; one of HTTP stays, and a refused one harms nobody."""

    async def scene() -> Engine:
        engine = Engine(("gone", "moved", "kept"))
        await engine.client.load("http", "/http")
        engine.orders.clear()
        refused = Fault.from_error(AdapterInvalid("rank 65"))
        engine.answers = lambda order: refused if order.name == "bad" else None
        before = {"gone": "/gone", "moved": "/old", "kept": "/kept"}
        await engine.client.follow(before, {"bad": "/bad", "moved": "/new", "kept": "/kept", "new": "/n"})
        return engine

    engine = asyncio.run(scene())

    assert [(type(order).__name__, order.name) for order in engine.orders] == [
        ("UnloadAdapter", "gone"), ("UnloadAdapter", "moved"),
        ("LoadAdapter", "bad"), ("LoadAdapter", "moved"), ("LoadAdapter", "new"),
    ]  # fmt: skip
    assert engine.orders[3].path == "/new"
    assert set(engine.client.names) == {"http", "kept", "moved", "new"}


def test_a_fresh_engine_after_a_changed_configuration_needs_no_order() -> None:
    """What its own configuration lists by then is not ordered again."""

    async def scene() -> Engine:
        engine = Engine(("gone",))
        await engine.client.follow({"gone": "/gone"}, {"new": "/n"})
        engine.orders.clear()
        engine.client.attached(("new",))
        return engine

    engine = asyncio.run(scene())

    assert (engine.orders, engine.client.names) == ([], ("new",))
