"""What one key may use: requests at a time, and tokens per minute."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ascendd.config.credentials import Credential
from ascendd.errors import KeyLimitReached

_MINUTE_S = 60.0


class KeyLimits:
    """
    Accounts by the name of a key, so that they outlive a reload of the file.

    Tokens fill up evenly, to those of one minute at most. What a request uses is known at its end, so one may overdraw;
    the key then waits until its account is above zero again.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._num_open: dict[str, int] = {}
        # Name -> tokens left, at which time.
        self._accounts: dict[str, tuple[float, float]] = {}

    @contextmanager
    def place(self, credential: Credential) -> Iterator[None]:
        """Hold one of the key's places while the block runs. Raises KeyLimitReached with Retry-After."""
        name, limit = credential.name, credential.max_concurrency
        num_open = self._num_open.get(name, 0)
        if limit is not None and num_open >= limit:
            raise KeyLimitReached(
                f"{num_open} requests of this key are in work, its max_concurrency is {limit}; try again later",
                openai_code="rate_limit_exceeded",
                retry_after_s=1,
            )
        rate = credential.tokens_per_minute
        if rate is not None and (left := self._left(name, rate)) <= 0:
            wait_s = math.ceil((1 - left) * _MINUTE_S / rate)
            raise KeyLimitReached(
                f"this key has used its {rate} tokens per minute; try again in {wait_s} s",
                openai_code="rate_limit_exceeded",
                retry_after_s=wait_s,
            )
        self._num_open[name] = num_open + 1
        try:
            yield
        finally:
            self._num_open[name] -= 1
            if not self._num_open[name]:
                del self._num_open[name]

    def charge(self, credential: Credential, num_tokens: int) -> None:
        """Take `num_tokens`, prompt and answer, off the key's account."""
        rate = credential.tokens_per_minute
        if rate is not None:
            self._accounts[credential.name] = (self._left(credential.name, rate) - num_tokens, self._clock())

    def _left(self, name: str, rate: int) -> float:
        left, since = self._accounts.get(name, (float(rate), self._clock()))
        return min(float(rate), left + (self._clock() - since) * rate / _MINUTE_S)
