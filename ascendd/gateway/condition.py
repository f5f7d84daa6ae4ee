"""Comparisons as people write them in a rule: `0.5`, `>= 0.8`, `> 0, < 128`. Pure."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from functools import partial

Check = Callable[[float], bool]

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt,
    "": operator.eq,
}  # fmt: skip
_MIRRORED: dict[Callable[[float, float], bool], Callable[[float, float], bool]] = {
    operator.ge: operator.le, operator.le: operator.ge, operator.gt: operator.lt, operator.lt: operator.gt,
    operator.eq: operator.eq, operator.ne: operator.ne,
}  # fmt: skip
_ONE = re.compile(r"\s*(>=|<=|==|!=|>|<|)\s*(-?[0-9]{1,12}(?:\.[0-9]{1,12})?)\s*")
RULE = "must be a number or comparisons of one divided by commas, such as `>= 0.8` or `> 0, < 128`"


def parse_condition(value: str | float) -> Check:
    """Return a function that tells whether a number keeps all comparisons. Raises ValueError with the rule."""
    if isinstance(value, bool):
        raise ValueError(RULE)  # noqa: TRY004 - callers catch one kind
    pairs: list[tuple[Callable[[float, float], bool], float]] = []
    for part in str(value).split(","):
        match = _ONE.fullmatch(part)
        if match is None:
            raise ValueError(RULE)
        pairs.append((_OPERATORS[match[1]], float(match[2])))
    if len(pairs) == 1:
        ((compare, bound),) = pairs
        # With the sides changed the bound is the first argument, and no function of ours is called for a number.
        return partial(_MIRRORED[compare], bound)
    return lambda number: all(compare(number, bound) for compare, bound in pairs)
