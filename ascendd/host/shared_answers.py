"""
Answers of tools that the checks of one round share: a question asked twice is put to the tool once.

Checks run in processes of their own, so the answers lie in a folder, one file each; a lock file makes the second asker
wait for the first. What the tool failed with is shared too: a tool that hangs costs its time limit once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Sequence

from ascendd.errors import AscenddError, ProbeError, error_by_code
from ascendd.host.command import CommandOutcome, RunCommand


def share_answers(run: RunCommand, folder: str) -> RunCommand:
    """Return `run` with its outcomes kept in `folder`, by argv, time limit and environment."""

    def ask(argv: Sequence[str], timeout_s: float, environ: Mapping[str, str]) -> CommandOutcome:
        question = json.dumps([list(argv), timeout_s, sorted(environ.items())])
        place = Path(folder) / hashlib.sha256(question.encode()).hexdigest()[:32]
        with place.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = _read(place)
            if known is not None:
                return _rebuild(known)
            try:
                outcome = run(argv, timeout_s, environ)
            except ProbeError as error:
                facts = {key: value for key, value in error.facts.items() if isinstance(value, (str, int, float))}
                said = {"code": error.code, "message": error.message, "remedy": error.remedy, "facts": facts}
                _write(place, {"error": said})
                raise
            _write(place, {"outcome": asdict(outcome)})
            return outcome

    return ask


def _read(place: Path) -> Optional[Dict[str, Any]]:
    try:
        known = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # not asked yet, or the asker was killed while it wrote
    assert isinstance(known, dict)
    return known


def _write(place: Path, said: Dict[str, Any]) -> None:
    place.write_text(json.dumps(said), encoding="utf-8")


def _rebuild(known: Dict[str, Any]) -> CommandOutcome:
    if "error" in known:
        said = known["error"]
        cls = error_by_code(said["code"])
        error: AscenddError = cls(said["message"], remedy=said["remedy"], **said["facts"])
        raise error
    outcome = known["outcome"]
    return CommandOutcome(**{**outcome, "argv": tuple(outcome["argv"])})
