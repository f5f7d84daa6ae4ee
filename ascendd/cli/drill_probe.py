"""DrillProbe: clients that ask a running instance without a pause, and remember how every request ended and when."""

from __future__ import annotations

import collections
import itertools
import json
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

TIMEOUT_S = 60.0
_PAUSE_S = 0.1


@dataclass(frozen=True)
class Ended:
    """When a request was sent and had ended (monotonic seconds), and how: finished, error event, lost or a status."""

    sent_s: float
    ended_s: float
    how: str


class DrillProbe:
    """Two clients in threads, one that asks for whole answers and one for streams. Use as a context."""

    def __init__(self, address: str, model: str, key: str | None = None) -> None:
        self._url = f"http://{address}/v1/completions"
        self._model = model
        self._key = key
        self._is_over = threading.Event()
        self._ends: list[Ended] = []
        self._threads = [threading.Thread(target=self._ask_on, args=(stream,), daemon=True) for stream in (False, True)]

    def __enter__(self) -> DrillProbe:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)

    @property
    def ends(self) -> list[Ended]:
        """What has ended so far, in the order in which it did."""
        return list(self._ends)

    def first_finished_after(self, at_s: float) -> Ended | None:
        """Return the first request that was sent after `at_s` and got its whole answer."""
        return next((end for end in self.ends if end.sent_s > at_s and end.how == "finished"), None)

    def _ask_on(self, stream: bool) -> None:
        while not self._is_over.is_set():
            sent_s = time.monotonic()
            how = self._ask(stream=stream)
            self._ends.append(Ended(sent_s, time.monotonic(), how))
            self._is_over.wait(_PAUSE_S)

    def _ask(self, *, stream: bool) -> str:
        body = {"model": self._model, "prompt": "drill", "max_tokens": 16, "ignore_eos": True, "stream": stream}
        headers = {"Content-Type": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        request = urllib.request.Request(self._url, json.dumps(body).encode(), headers)  # noqa: S310 - http, see __init__
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310 - as above
                lines = [line.strip() for line in response.read().decode().splitlines() if line.strip()]
            if not stream:
                return "finished" if json.loads(lines[0])["choices"] else "lost"
            if lines[-1] == "data: [DONE]":
                return "finished"
            return "error event" if '"error"' in lines[-1] else "lost"
        except urllib.error.HTTPError as error:
            with error:
                return f"status {error.code}"
        except Exception:  # reset, refused, cut off in the middle of a line
            return "lost"


def seen(ends: list[Ended], since_s: float) -> dict[str, Any]:
    """Return what clients saw of requests that ended after `since_s`: counts, longest wait and pause in seconds."""
    late = [end for end in ends if end.ended_s >= since_s]
    finished = sorted([since_s, *(end.ended_s for end in late if end.how == "finished")])
    pauses = [after - before for before, after in itertools.pairwise(finished)]
    return {
        "requests": dict(sorted(collections.Counter(end.how for end in late).items())),
        "longest_wait_s": round(max((end.ended_s - end.sent_s for end in late), default=0.0), 2),
        "longest_pause_s": round(max(pauses, default=0.0), 2),
    }
