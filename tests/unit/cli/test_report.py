"""An incident bundle as people read it."""

from __future__ import annotations

from pathlib import Path

from ascendd.cli.report import render

BUNDLE = {
    "instance": "blue",
    "incident": {"unix_s": 1000.0, "reason": "engine was killed by SIGKILL", "episode": "e-1"},
    "fault": None,
    "kernel_faults": [],
    "lines": {"supervisor": ["last words"]},
    "stacks": {},
    "versions": {"ascendd": "1"},
    "memory_curve": [
        {"unix_s": 900.0, "api": 2**20, "engine": 3 * 2**20},
        {"unix_s": 950.0, "api": 2**21, "engine": 9 * 2**20},
        {"unix_s": 1000.0, "api": 2**21},
    ],
}


def test_the_memory_of_the_process_that_died_is_shown() -> None:
    """It has no figure at the end, which is when the others are read; its way up to there is what is looked for."""
    lines = render(Path("/b.json"), BUNDLE).splitlines()

    assert "  memory   engine 3 -> 9 MiB, at most 9 over 50 s" in lines
    assert "  memory   api 1 -> 2 MiB, at most 2 over 100 s" in lines
    assert lines[-1] == "    last words"
