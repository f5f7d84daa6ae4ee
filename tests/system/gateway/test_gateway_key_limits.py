"""What a key may use at the gateway, over all instances together: requests at a time, and tokens per minute."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ascendd.config.credentials import Credential, digest_of

if TYPE_CHECKING:
    from .conftest import Process, Reply, ScriptedInstance  # type: ignore[import-not-found]

pytestmark = pytest.mark.system
CHAT = "/v1/chat/completions"


@pytest.fixture
def servers(scripted: Callable[[str], ScriptedInstance]) -> list[ScriptedInstance]:
    """Two instances of one model."""
    return [scripted("one"), scripted("two")]


@pytest.fixture
def gateway(servers: list[ScriptedInstance], start_gateway: Callable[..., Process], tmp_path: Path) -> Process:
    """A gateway before both, with the keys single (one request at a time), frugal (1000 tokens a minute) and free."""
    limits: dict[str, dict[str, int]] = {
        "single": {"max_concurrency": 1},
        "frugal": {"tokens_per_minute": 1000},
        "free": {},
    }
    lines = [
        Credential(name, digest_of(f"key-{name}"), frozenset({"infer"}), **limit).line()
        for name, limit in limits.items()
    ]
    (tmp_path / "keys").write_text("\n".join(lines) + "\n")
    return start_gateway({
        "listen": {"port": 0, "api_key_file": str(tmp_path / "keys")},
        "instances": [{"name": server.name, "url": server.url, "models": ["m"]} for server in servers],
    })  # fmt: skip


def chat(gateway: Process, key: str, **fields: Any) -> Reply:
    """Ask for a chat."""
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * 40}], **fields}
    return gateway.ask(CHAT, body, {"Authorization": f"Bearer key-{key}"})


def test_requests_at_a_time(gateway: Process, servers: list[ScriptedInstance], eventually: Callable[..., None]) -> None:
    """A second one of the key is 429 with Retry-After though another instance is idle; other keys do not notice."""
    gate = threading.Semaphore(0)
    for server in servers:
        server.play(gate=gate)
    first = threading.Thread(target=chat, args=(gateway, "single"), kwargs={"stream": True}, daemon=True)
    first.start()
    eventually(lambda: servers[0].bodies or servers[1].bodies, "a request in work")
    refused, other = chat(gateway, "single"), chat(gateway, "free")
    gate.release(100)
    first.join(90)

    assert (refused.status, refused.json["error"]["code"]) == (429, "rate_limit_exceeded")
    assert refused.headers["retry-after"] == "1"
    assert "max_concurrency is 1" in refused.json["error"]["message"]
    assert other.status == 200
    eventually(lambda: chat(gateway, "single").status == 200, "an answer once the first has ended")


def test_tokens_per_minute_of_streams_and_whole_answers(gateway: Process, servers: list[ScriptedInstance]) -> None:
    """The instances' own figures count together; a stream's chunk with them is not the client's, who did not ask."""
    for server in servers:
        server.play(total_tokens=600)
    streamed = chat(gateway, "frugal", stream=True)
    for server in servers:
        server.play(total_tokens=60_000)
    whole = chat(gateway, "frugal")
    refused, other = chat(gateway, "frugal"), chat(gateway, "free", stream=True)
    sent = [body for server in servers for body in server.bodies]

    assert (streamed.status, whole.status, whole.json["usage"]) == (200, 200, {"total_tokens": 60_000})
    assert streamed.body.count(b"data: {") == 3
    assert streamed.body.endswith(b"data: [DONE]\n\n")
    assert b"usage" not in streamed.body
    assert (refused.status, refused.json["error"]["code"]) == (429, "rate_limit_exceeded")
    # 59,600 beyond it at 1000 a minute.
    assert 3000 <= int(refused.headers["retry-after"]) <= 3577
    assert other.status == 200
    assert [body.get("stream_options") for body in sent if body.get("stream")].count({"include_usage": True}) == 1
    assert len(sent) == 3


def test_a_reload_forgives_nobody(
    gateway: Process, servers: list[ScriptedInstance], eventually: Callable[..., None]
) -> None:
    """What a key has used stays used."""
    for server in servers:
        server.play(total_tokens=60_000)
    chat(gateway, "frugal")
    gateway.popen.send_signal(signal.SIGHUP)
    eventually(lambda: gateway.events("gateway.reloaded"), "the reload")

    assert chat(gateway, "frugal").status == 429
    metrics = 'ascendd_gateway_requests_total{rule="",status="429",target=""}'
    eventually(lambda: gateway.metrics().get(metrics) == 1.0, "the refusal among the figures")
