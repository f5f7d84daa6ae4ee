"""What a day of long prompts does to the log: a line a request, no text of anybody's, whatever happens to the disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(1800)]
NUM_REQUESTS, NUM_CLIENTS = 10_000, 8
SECRET = "account-4711 "
PROMPT = SECRET * (50_000 // len(SECRET))
# Bytes of the log for one request, all its lines together.
MOST_PER_REQUEST = 1000


def test_b98_ten_thousand_long_prompts(start_api: Callable[..., Any], script: Callable[..., Any]) -> None:
    """B98: at the default level 500 MB of prompts leave a line a request, each short, and nothing of a prompt."""
    api = start_api()
    api.attach_engine(lambda _: script(api.ids("hello ")), max_model_len=65_536)
    api.wait_ready()
    before = api.log_path.stat().st_size

    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        statuses = set(pool.map(lambda _: api.complete(prompt=PROMPT, max_tokens=1).status, range(NUM_REQUESTS)))
    lines = api.log.splitlines()
    requests = [line for line in lines if json.loads(line).get("event") == "api.request"]
    num_bytes = api.log_path.stat().st_size - before
    print(f"{num_bytes / NUM_REQUESTS:.0f} bytes of log a request")

    assert statuses == {200}
    assert len(requests) == NUM_REQUESTS
    assert SECRET.strip() not in api.log
    assert max(map(len, lines)) < 2000
    assert num_bytes < MOST_PER_REQUEST * NUM_REQUESTS
