"""The root of the error tree and the exit codes; import both from ascendd.errors. Stdlib only."""

from __future__ import annotations

import enum
from typing import Any, Dict, Optional


class ExitCode(enum.IntEnum):
    """Exit codes after sysexits.h; `ascendd doctor` has its own (preflight.report.DoctorExit)."""

    OK = 0
    USAGE = 64
    MODEL = 66
    PREFLIGHT = 69
    ENGINE = 70
    HOST = 71
    CONFIG = 78


class AscenddError(Exception):
    """Any failure the product knows by name; `facts` are the values that the message speaks of."""

    code = "ASD-X01"
    exit_code = ExitCode.ENGINE
    retryable = False
    permanent = False
    default_remedy = "Read the log lines before this one."

    def __init__(self, message: str, *, remedy: Optional[str] = None, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy or self.default_remedy
        self.facts: Dict[str, Any] = facts

    @property
    def runbook(self) -> str:
        """Where the operator reads on, relative to the documentation root."""
        return f"docs/runbooks/{self.code}.md"

    def __str__(self) -> str:
        return self.message
