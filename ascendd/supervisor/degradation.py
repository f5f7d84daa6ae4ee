"""Degradations: what an instance that serves does without. Pure; told in STATUS, on /readyz and in a metric."""

from __future__ import annotations

import enum


class Degradation(enum.Enum):
    """Each thing that an instance can serve without."""

    KV_CACHE = "kv_cache"  # smaller than configured, after the device ran out of memory
    CHILD = "child"  # the metrics process or the log writer is down
    DEVICE = "device"  # a chip was left out
    MEMORY_GROWTH = "memory_growth"  # a process grows without end
    LOG = "log"  # the log file takes no lines
    HOST = "host"  # a check of the host that is made again while serving fails


class Degradations:
    """The degradations of now, each with a clause for people."""

    def __init__(self) -> None:
        self._texts: dict[Degradation, str] = {}

    def set(self, what: Degradation, text: str | None) -> bool:
        """Note `text`, or with None that it is over; return whether that changed anything."""
        before = self._texts.get(what)
        if text is None:
            self._texts.pop(what, None)
        else:
            self._texts[what] = text
        return before != text

    def __contains__(self, what: Degradation) -> bool:
        return what in self._texts

    @property
    def text(self) -> str:
        """All of them in one line, empty where there is none."""
        return "; ".join(self._texts[what] for what in Degradation if what in self._texts)
