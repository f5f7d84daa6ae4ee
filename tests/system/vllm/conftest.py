"""Daemons with vLLM behind them, ended with the test."""

from __future__ import annotations

import pytest
from kept_daemon import KeptDaemon, gone


@pytest.fixture
def kept(tmp_path):
    """Return a function that starts daemons; all are ended, and none may leave a vLLM."""
    daemons = []

    def start(*args, **kwargs) -> KeptDaemon:
        daemons.append(KeptDaemon(tmp_path, *args, **kwargs))
        return daemons[-1]

    yield start
    for daemon in daemons:
        daemon.end()
        for start_ in daemon.starts():
            assert gone(start_["pid"]), daemon.log
