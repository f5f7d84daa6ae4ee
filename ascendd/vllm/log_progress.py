"""
What vLLM's log tells of its load: how far it is, and what it found. Pure.

Lines as V1 engines of vLLM 0.8 to 0.32 and vllm-ascend write them (their public issues and sources); the pid in front
and the place in brackets are not looked at. A line that nobody knows is no progress, so a load that only repeats itself
is seen to hang.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class _Stage:
    """A line that `pattern` finds begins `phase` at `start`; a percentage in it moves on by that share of `width`."""

    pattern: re.Pattern[str]
    phase: str
    start: float
    width: float = 0.0


def _stage(pattern: str, phase: str, start: float, width: float = 0.0) -> _Stage:
    return _Stage(re.compile(pattern), phase, start, width)


# In the order in which they come; no later line of an earlier stage goes back.
_STAGES = (
    _stage(r"vLLM (?:API )?server version", "vLLM starts", 0.02),
    _stage(r"Initializing a V\d LLM engine|Waiting for init message from front-end", "the engine of vLLM starts", 0.05),
    _stage(r"Starting to load model|Loading model from scratch", "loading weights", 0.08),
    _stage(r"Loading \w+ checkpoint shards:\s+(\d+)%", "loading weights", 0.08, 0.47),
    _stage(r"Loading (?:model )?weights took", "weights loaded", 0.56),
    _stage(r"Model loading took|# GPU blocks", "profiling memory", 0.6),
    _stage(r"torch\.compile|Dynamo bytecode|[Cc]ompiling (?:a )?graph|Start compiling", "compiling", 0.64),
    _stage(r"KV cache size:|Available KV cache memory:", "KV cache made", 0.72),
    _stage(r"Warming up model for the compilation", "compiling", 0.74),  # of a CPU, which has no graphs
    _stage(r"Capturing .*graph.*?(\d+)%", "capturing graphs", 0.75, 0.18),
    _stage(r"Graph capturing finished", "graphs captured", 0.94),
    _stage(r"init engine \(profile", "the engine of vLLM is up", 0.95),
    _stage(r"Starting vLLM (?:API )?server|Application startup complete", "vLLM listens", 0.98),
)
_CACHE = re.compile(r"KV cache size: ([\d,]+) tokens")
_VERSION = re.compile(r"vLLM (?:API )?server version ([^\s,]+)")


class LoadProgress:
    """Reads lines; `phase` and `fraction` (0..1) say how far the load is, and never go back."""

    def __init__(self) -> None:
        self.phase = "vLLM starts"
        self.fraction = 0.0
        self.version = ""
        # Tokens that the KV cache holds: of the smallest rank, where there are several.
        self.cache_tokens: int | None = None

    def read(self, line: str) -> bool:
        """Take `line`; return whether the load is further than it was."""
        if (version := _VERSION.search(line)) is not None:
            self.version = version[1]
        if (cache := _CACHE.search(line)) is not None:
            tokens = int(cache[1].replace(",", ""))
            self.cache_tokens = tokens if self.cache_tokens is None else min(self.cache_tokens, tokens)
        for stage in reversed(_STAGES):
            if (found := stage.pattern.search(line)) is None:
                continue
            share = min(int(found[1]), 100) / 100 if stage.width and found[1] else 0.0
            fraction = stage.start + share * stage.width
            if fraction <= self.fraction:
                return False
            self.phase, self.fraction = stage.phase, fraction
            return True
        return False
