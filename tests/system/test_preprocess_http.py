"""Prompts cleaned by a real daemon: usage and metrics say what was removed, and the prefix that all requests share is cached."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from loopback_ports import free_ports

pytestmark = pytest.mark.system

# A character is a token of the tiny model, and a chat is its lines `role: content` with `assistant: ` behind them.
SYSTEM = "You answer in short sentences and never guess."
KEPT = 160


class Daemon:
    """One instance with every step of preprocessing on."""

    def __init__(self, port: int, metrics_port: int) -> None:
        self._port = port
        self._metrics_port = metrics_port

    def chat(self, *messages: tuple[str, str], max_tokens: int = 2) -> dict[str, Any]:
        """Return the usage of a chat."""
        body = {
            "messages": [{"role": role, "content": content} for role, content in messages],
            "model": "tiny", "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
        }  # fmt: skip
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            usage: dict[str, Any] = json.load(response)["usage"]
        return usage

    def removed(self) -> dict[str, float]:
        """Return tokens removed so far by step, as /metrics has them."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics_port}/metrics", timeout=120) as response:
            page = response.read().decode()
        name = 'ascendd_preprocess_removed_tokens_total{step="'
        lines = [line.removeprefix(name) for line in page.splitlines() if line.startswith(name)]
        return {line.partition('"')[0]: float(line.rpartition(" ")[2]) for line in lines}


@pytest.fixture(scope="module")
def daemon(tiny_daemon: Callable[..., AbstractContextManager[int]]) -> Iterator[Daemon]:
    """The daemon, ready."""
    (metrics_port,) = free_ports(1)
    sections = (
        f"metrics: {{port: {metrics_port}, max_scrapes_per_s: 1000}}\n"
        "preprocess: {whitespace: all, strip_html: true, drop_repeated_system: true, truncate: last,"
        f" keep_last_tokens: {KEPT}, system_prompt: {SYSTEM}}}\n"
    )
    with tiny_daemon(512, "max_num_seqs: 4", sections) as port:
        yield Daemon(port, metrics_port)


def line(role: str, content: str) -> int:
    """Tokens of one message in the template."""
    return len(f"{role}: {content}\n")


HEAD = line("system", SYSTEM) + len("assistant: ")


def test_each_step_tells_what_it_removed(daemon: Daemon) -> None:
    """White space, HTML, a repeated system prompt and what was cut off: usage has each, and /metrics their sum."""
    plain = daemon.chat(("user", "hello"))
    spaced = daemon.chat(("user", "so   much     room"))
    marked = daemon.chat(("user", "hi <b>you</b>"))
    repeated = daemon.chat(("system", SYSTEM), ("system", "Be brief."), ("system", "Be brief."), ("user", "go"))
    long = daemon.chat(("user", "x" * 400))
    details = [
        usage["prompt_tokens_details"].get("removed_tokens") for usage in (plain, spaced, marked, repeated, long)
    ]

    assert plain["prompt_tokens"] == HEAD + line("user", "hello")
    assert spaced["prompt_tokens"] == HEAD + line("user", "so much room")
    assert details[:2] == [None, {"whitespace": 6}]
    assert details[2] == {"html": len("<b></b>")}
    assert details[3] == {"repeated_system": len("Be brief.")}
    assert long["prompt_tokens"] == KEPT
    assert details[4] == {"truncated": HEAD + line("user", "x" * 400) - KEPT}

    told: dict[str, int] = {}
    for item in details:
        for step, number in (item or {}).items():
            told[step] = told.get(step, 0) + number
    deadline = time.monotonic() + 90
    while (found := daemon.removed()) != told and time.monotonic() < deadline:
        time.sleep(0.1)  # processes tell their figures once a second
    assert found == told


def test_the_server_s_prompt_is_shared(daemon: Daemon) -> None:
    """Requests with nothing in common but the server's own system prompt have its whole blocks from the cache."""
    daemon.chat(("user", "first of two"))
    second = daemon.chat(("user", "another one"))

    assert second["prompt_tokens_details"]["cached_tokens"] == line("system", SYSTEM) // 16 * 16
