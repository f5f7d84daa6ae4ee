"""The gateway before two real instances with small random models: routed, streamed, and one of them killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .conftest import Process  # type: ignore[import-not-found]

pytestmark = pytest.mark.system
MESSAGES = [{"role": "user", "content": "hello"}]
CHAT = "/v1/chat/completions"


def test_two_instances_one_killed(
    start_instance: Callable[..., Process], start_gateway: Callable[..., Process], eventually: Callable[..., None]
) -> None:
    """
    The account's rules over real engines: each model answers its requests; killed, the other one answers for it.

    One test, because it is one story and loading models is what costs.
    """
    large, small = start_instance("qwen2-7b", 1), start_instance("phi-3-mini", 2)
    for instance in (large, small):
        eventually(lambda instance=instance: instance.events("api.self_test_passed"), "a passed self-test")
        instance.port = instance.events("api.listening")[0]["port"]
    gateway = start_gateway({
        "instances": [
            {"name": "qwen2-7b", "url": f"http://127.0.0.1:{large.port}"},
            {"name": "phi-3-mini", "url": f"http://127.0.0.1:{small.port}"},
        ],
        "rules": [
            {"name": "creative", "when": {"temperature": ">= 0.8"}, "to": ["qwen2-7b", "phi-3-mini"]},
            {"name": "short", "when": {"max_tokens": "< 128"}, "to": ["phi-3-mini", "qwen2-7b"]},
        ],
    })  # fmt: skip
    eventually(lambda: gateway.ask("/readyz").json == {"status": "ready"}, "both instances up")

    def chat(**fields: Any) -> Any:
        body = {"model": "auto", "messages": MESSAGES, "max_tokens": 6, "ignore_eos": True, **fields}
        return gateway.ask(CHAT, body)

    creative, short, streamed = chat(temperature=0.9), chat(temperature=0), chat(temperature=0.9, stream=True)
    assert (creative.json["model"], creative.json["usage"]["completion_tokens"]) == ("qwen2-7b", 6)
    assert (short.json["model"], short.headers["x-ascendd-rule"]) == ("phi-3-mini", "short")
    assert streamed.body.rstrip().endswith(b"data: [DONE]")

    asked = subprocess.run(
        [sys.executable, "-m", "ascendd", "chat", "--url", f"http://127.0.0.1:{gateway.port}", "--max-tokens", "5"],
        input="hello", capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert asked.returncode == 0, asked.stderr

    os.kill(large.popen.pid, signal.SIGKILL)
    large.popen.wait(timeout=120)
    fallen = chat(temperature=0.9)
    named = gateway.ask(CHAT, {"model": "qwen2-7b", "messages": MESSAGES, "max_tokens": 2})

    assert fallen.status == 200, (fallen.body, gateway.log_path.read_text())
    assert fallen.json["model"] == "phi-3-mini"
    assert fallen.headers["x-ascendd-rule"] == "creative"
    assert (named.status, named.json["error"]["code"]) == (503, "ASD-W01")
    assert gateway.ask("/readyz").json == {"status": "degraded"}
    assert gateway.stop() == 0
