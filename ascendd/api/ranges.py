"""Checks of one value of a request: its range, named with the field and the value."""

from __future__ import annotations

import math

from ascendd.errors import InvalidRequest


def integer(name: str, value: int | None, default: int, low: int, high: int) -> int:
    """Return `value`, or `default` where there is none. Raises InvalidRequest outside of low..high."""
    if value is None:
        return default
    if not low <= value <= high:
        raise InvalidRequest(f"`{name}` is {value}; it must be from {low} to {high}", param=name)
    return value


def number(name: str, value: float | None, default: float, low: float, high: float) -> float:
    """Return `value`, or `default` where there is none. Raises InvalidRequest outside of low..high and for NaN."""
    if value is None:
        return default
    if not math.isfinite(value) or not low <= value <= high:
        raise InvalidRequest(f"`{name}` is {value:g}; it must be from {low:g} to {high:g}", param=name)
    return value


def check_token_id(token_id: int, vocab_size: int, param: str) -> None:
    """Raise InvalidRequest unless the model's own vocabulary, not the tokenizer's, has `token_id`."""
    if not 0 <= token_id < vocab_size:
        raise InvalidRequest(
            f"`{param}`: token id {token_id} is out of vocabulary; this model has ids 0 to {vocab_size - 1}",
            param=param,
        )


def check_count(name: str, count: int, most: int, what: str) -> None:
    """Raise InvalidRequest where a list is longer than `most`; `what` it holds is named in the plural."""
    if count > most:
        raise InvalidRequest(f"`{name}` has {count} {what}, at most {most} are taken", param=name)
