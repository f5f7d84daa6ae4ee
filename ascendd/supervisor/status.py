"""The lines that people read in `systemctl status` and that clients get with a 503. Pure."""

from __future__ import annotations

import math

# What a client waits when nothing better is known, and at most.
DEFAULT_RETRY_AFTER_S = 5
MAX_RETRY_AFTER_S = 300


def progress_text(phase: str, fraction: float) -> str:
    """Return `loading 42 %`, or the phase alone where the share is not known."""
    return phase if fraction < 0 else f"{phase} {min(fraction, 1.0) * 100:.0f} %"


def restart_text(reason: str, delay_s: float) -> str:
    """Return why something is down and when it comes back."""
    when = "now" if delay_s < 1 else f"in {math.ceil(delay_s)} s"
    return f"{reason}; restarting {when}"


def retry_after_s(delay_s: float, load_s: float | None) -> int:
    """Return after how many whole seconds a client should try again: the backoff plus the last known load time."""
    expected_s = delay_s + (DEFAULT_RETRY_AFTER_S if load_s is None else load_s)
    return max(1, min(MAX_RETRY_AFTER_S, math.ceil(expected_s)))


def remaining_s(elapsed_s: float, fraction: float, load_s: float | None) -> int:
    """Return in how many whole seconds loading will be over, by its own pace or by the last load."""
    if fraction > 0.05:
        return max(1, min(MAX_RETRY_AFTER_S, math.ceil(elapsed_s / fraction - elapsed_s)))
    expected_s = DEFAULT_RETRY_AFTER_S if load_s is None else load_s - elapsed_s
    return max(1, min(MAX_RETRY_AFTER_S, math.ceil(expected_s)))
