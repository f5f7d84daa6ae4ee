"""
CaptureAccord: the tensor ranks capture a graph together or not at all.

The collectives of a rank's graph are met by those of its peers' graphs. A rank that replays one while a peer computes
the same step eagerly might meet its collectives in another order, or wait for ever; so what one rank cannot capture,
none does.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ascendd.engine.parallel.rank_group import TensorGroup
from ascendd.errors import AscenddError, DeviceOutOfMemory, GraphCaptureFailed

# How grave a failure is: each step leaves fewer graphs than the one before.
_STREAMS, _MEMORY, _NEVER = 1, 2, 3


class _Word(msgspec.Struct):
    """What a rank says of its attempt; gravity 0 is success."""

    gravity: int = 0
    message: str = ""
    remedy: str = ""


class CaptureAccord:
    """`classify` is the device's, for the errors of its runtime (device.base.Device.classify_fault)."""

    def __init__(self, group: TensorGroup, classify: Callable[[BaseException], AscenddError | None]) -> None:
        self._group = group
        self._classify = classify

    def may_capture(self, reason_against: str) -> str:
        """Return why no rank captures, or an empty text; `reason_against` is this rank's, or empty."""
        for rank, reason in enumerate(self._group.exchange(reason_against)):
            if reason:
                return self._of_rank(rank, reason)
        return ""

    def attempt(self, work: Callable[[], object]) -> AscenddError | None:
        """
        Run `work`, which calls no collective; return the gravest failure of any rank, the same kind on each, or None.

        Raises what is no failure of capturing: a typed fault where it is one of the device's.
        """
        own = self._own_failure(work)
        words = [
            msgspec.json.decode(word, type=_Word)
            for word in self._group.exchange(msgspec.json.encode(_word_of(own)).decode())
        ]
        gravest = max(range(len(words)), key=lambda rank: (words[rank].gravity, -rank))
        word = words[gravest]
        if not word.gravity or gravest == self._group.rank:
            return own
        message, remedy = self._of_rank(gravest, word.message), word.remedy or None
        if word.gravity == _MEMORY:
            return DeviceOutOfMemory(message, remedy=remedy)
        return GraphCaptureFailed(message, remedy=remedy, cannot_capture=word.gravity == _NEVER)

    def attempt_with_peers(self, work: Callable[[], object]) -> AscenddError | None:
        """
        Run `work`, which calls collectives; of a rank alone return its failure.

        Of several ranks it is raised, since the peers sit inside a collective then: the group ends with it.
        """
        failure = self._own_failure(work)
        if failure is not None and self._group.size > 1:
            raise failure
        return failure

    def _own_failure(self, work: Callable[[], object]) -> AscenddError | None:
        try:
            work()
        except GraphCaptureFailed as failed:
            return failed
        except (RuntimeError, MemoryError) as error:
            fault = self._classify(error) or self._classify(error.__context__ or error)
            if isinstance(fault, (DeviceOutOfMemory, GraphCaptureFailed)):
                return fault
            if fault is None:
                raise
            raise fault from error
        return None

    def _of_rank(self, rank: int, text: str) -> str:
        return text if rank == self._group.rank else f"tensor rank {rank} of {self._group.size}: {text}"


def _word_of(failure: AscenddError | None) -> _Word:
    if failure is None:
        return _Word()
    gravity = _STREAMS
    if failure.facts.get("cannot_capture"):
        gravity = _NEVER
    elif isinstance(failure, DeviceOutOfMemory):
        gravity = _MEMORY
    return _Word(gravity, failure.message, failure.remedy or "")
