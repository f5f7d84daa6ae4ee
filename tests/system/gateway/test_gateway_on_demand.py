"""Instances that the gateway has systemd start and stop: a fake systemctl on PATH, servers that are up as it says."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .conftest import Process, Reply, ScriptedInstance  # type: ignore[import-not-found]

pytestmark = pytest.mark.system
# Appends what it is asked, and says that the units in `failed` have failed.
SYSTEMCTL = """#!/bin/sh
shift  # --no-ask-password
echo "$@" >> "{folder}/asked"
case "$1" in
  is-failed) grep -qx "$3" "{folder}/failed" ;;
  *) exit 0 ;;
esac
"""


class Host:
    """Units as the fake systemctl has seen them, and the gateway before them."""

    def __init__(self, folder: Path, servers: dict[str, ScriptedInstance]) -> None:
        self._folder = folder
        self.servers = servers
        self.gateway: Process | None = None

    @property
    def asked(self) -> list[str]:
        """What was asked of systemctl, but for questions."""
        lines = (self._folder / "asked").read_text().splitlines()
        return [line for line in lines if line.split()[0] in ("start", "stop")]

    def fail(self, unit: str) -> None:
        """Have a unit count as failed."""
        with (self._folder / "failed").open("a") as file:
            file.write(f"{unit}\n")

    def chat(self, model: str) -> Reply:
        """Ask for a chat."""
        assert self.gateway is not None
        messages = [{"role": "user", "content": "hello"}]
        return self.gateway.ask("/v1/chat/completions", {"model": model, "messages": messages, "max_tokens": 4})


@pytest.fixture
def host(
    tmp_path: Path,
    scripted: Callable[[str], ScriptedInstance],
    start_gateway: Callable[[dict[str, Any]], Process],
    monkeypatch: pytest.MonkeyPatch,
) -> Host:
    """Two instances of which memory holds one, and one that always runs; none of the two is up."""
    tool = tmp_path / "systemctl"
    tool.write_text(SYSTEMCTL.format(folder=tmp_path))
    tool.chmod(0o755)
    for name in ("asked", "failed"):
        (tmp_path / name).touch()
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    servers = {name: scripted(name) for name in ("steady", "one", "two")}
    servers["one"].ready_status = servers["two"].ready_status = 503
    host = Host(tmp_path, servers)
    host.gateway = start_gateway({
        "on_demand_memory": "10GiB",
        "instances": [
            {"name": "steady", "url": servers["steady"].url},
            *(
                {"name": name, "url": servers[name].url,
                 "on_demand": {"unit": f"ascendd@{name}", "idle_s": idle_s, "load_s": 7, "memory": "6GiB"}}
                for name, idle_s in (("one", 3600), ("two", 0.5))
            ),
        ],
    })  # fmt: skip
    return host


def test_loaded_when_asked_for_and_unloaded_when_idle(host: Host, eventually: Callable[..., None]) -> None:
    """
    503 with `loading` and Retry-After while it starts, once; then it serves; another takes its memory; idle, it leaves.

    What always runs is served all the while, and readiness and the list of models do not wait for what sleeps.
    """
    gateway = host.gateway
    assert gateway is not None
    first, again, steady = host.chat("one"), host.chat("one"), host.chat("steady")
    ready, models = gateway.ask("/readyz").json, gateway.ask("/v1/models").json["data"]

    assert [(reply.status, reply.json["error"]["code"]) for reply in (first, again)] == [(503, "loading")] * 2
    assert 1 <= int(first.headers["retry-after"]) <= 7
    assert (steady.status, ready) == (200, {"status": "ready"})
    assert [model["id"] for model in models] == ["steady", "one", "two"]
    eventually(lambda: host.asked, "a start")
    assert host.asked == ["start --no-block ascendd@one"]

    host.servers["one"].ready_status = 200
    eventually(lambda: host.chat("one").status == 200, "an answer of the loaded instance")
    eventually(lambda: gateway.events("gateway.loaded"), "the end of the load")
    assert host.chat("two").json["error"]["code"] == "loading"
    eventually(lambda: len(host.asked) == 3, "a stop for the memory, and a start")
    assert host.asked[1:] == ["stop ascendd@one", "start --no-block ascendd@two"]

    host.servers["one"].ready_status, host.servers["two"].ready_status = 503, 200
    eventually(lambda: len(host.asked) == 4, "a stop of what nobody asks for")
    assert host.asked[3] == "stop ascendd@two"
    assert gateway.events("gateway.idle")[0]["target"] == "two"
    # The scripted server goes on to answer, so it may be stopped more than once.
    name = 'ascendd_gateway_loads_total{action="unload",target="two"}'
    eventually(lambda: gateway.metrics().get(name, 0.0) >= 1.0, "the figure")


def test_open_requests_keep_their_memory(host: Host, eventually: Callable[..., None]) -> None:
    """While one answers, the other that would need its memory is 503 with `no_memory`, and nothing is stopped."""
    gateway = host.gateway
    assert gateway is not None
    host.servers["one"].ready_status = 200
    eventually(lambda: "one" in {e["target"] for e in gateway.events("gateway.instance_up")}, "the instance up")
    host.servers["one"].script.gate = gate = threading.Semaphore(0)
    body = {"model": "one", "messages": [{"role": "user", "content": "x"}], "stream": True}
    thread = threading.Thread(target=lambda: gateway.ask("/v1/chat/completions", body), daemon=True)

    thread.start()
    eventually(lambda: host.servers["one"].bodies, "an open request")
    refused = host.chat("two")
    gate.release(100)
    thread.join(30)

    assert (refused.status, refused.json["error"]["code"]) == (503, "no_memory")
    assert "start --no-block ascendd@two" not in host.asked


def test_a_start_that_fails_is_told(host: Host, eventually: Callable[..., None]) -> None:
    """The client hears that it could not be started, the operator which unit's journal to read; it is not tried at once."""
    host.fail("ascendd@one")
    first = host.chat("one")
    gateway = host.gateway
    assert gateway is not None
    eventually(lambda: gateway.events("gateway.load_failed"), "the failure")
    second = host.chat("one")

    assert first.json["error"]["code"] == "loading"
    assert second.status == 503
    assert "journalctl -u ascendd-gateway -u ascendd@one" in second.json["error"]["message"]
    assert int(second.headers["retry-after"]) == 30
    assert host.asked == ["start --no-block ascendd@one"]
