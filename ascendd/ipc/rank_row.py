"""RankRow: one rank of several, as its engine tells the supervisor of it and `ascendd status` shows it."""

from __future__ import annotations

import msgspec


class RankRow(msgspec.Struct, array_like=True, frozen=True):
    """
    What the engine last heard of a rank, `silent_s` seconds ago.

    It has worked for `inflight_s` at its order, 0 where it has none; `collective` is where it waits for the others.
    """

    rank: int
    pid: int
    step_seq: int
    inflight_s: float
    silent_s: float
    collective: str = ""
