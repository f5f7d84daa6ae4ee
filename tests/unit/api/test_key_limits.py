"""What one key may use."""

from __future__ import annotations

import pytest

from ascendd.api.key_limits import KeyLimits
from ascendd.config.credentials import Credential
from ascendd.errors import KeyLimitReached


def test_requests_at_a_time_are_bounded() -> None:
    """One more than max_concurrency is 429 with Retry-After; other keys are not held up, and a place comes back."""
    limits, busy, other = KeyLimits(), Credential("a", b"", max_concurrency=1), Credential("b", b"", max_concurrency=1)
    refused = pytest.raises(KeyLimitReached, match="max_concurrency is 1")
    with limits.place(busy), limits.place(other), refused as caught, limits.place(busy):
        pass
    with limits.place(busy):
        pass

    assert caught.value.facts["retry_after_s"] == 1
    assert limits._num_open == {}


def test_tokens_fill_up_again() -> None:
    """A key that has used its minute waits for as long as Retry-After says, and never saves up more than a minute."""
    now = [0.0]
    limits, key = KeyLimits(lambda: now[0]), Credential("a", b"", tokens_per_minute=60)
    limits.charge(key, 70)
    with pytest.raises(KeyLimitReached, match="60 tokens per minute") as caught, limits.place(key):
        pass
    now[0] = caught.value.facts["retry_after_s"]
    with limits.place(key):
        limits.charge(key, 1)
    now[0] += 3600
    limits.charge(key, 60)

    assert caught.value.facts["retry_after_s"] == 11
    with pytest.raises(KeyLimitReached), limits.place(key):
        pass


def test_key_without_limits_is_free() -> None:
    """No limits, no account."""
    limits, key = KeyLimits(), Credential("a", b"")
    limits.charge(key, 10**9)
    with limits.place(key), limits.place(key):
        pass

    assert limits._accounts == {}
