"""Find the checks: an explicit tuple in checks/__init__.py, under the name that this installation gives the folder."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Iterable, List, Sequence, Tuple, Type

from ascendd.errors import UsageError
from ascendd.preflight.check import Check, Tier


def find_checks() -> Tuple[Type[Check], ...]:
    """Return every check class: from `ascendd.checks` when installed, from `checks` in an unpacked bundle."""
    name = "ascendd.checks" if importlib.util.find_spec("ascendd.checks") is not None else "checks"
    checks: Tuple[Type[Check], ...] = importlib.import_module(name).CHECKS
    return checks


def select(
    checks: Sequence[Type[Check]], only: Iterable[str], deep: bool, skip: Iterable[str] = ()
) -> List[Type[Check]]:
    """
    Return the checks named in `only`, or all of them, without those in `skip`; DEEP ones need `deep` or to be named.

    A name can be several with commas between them. Raises UsageError for a name that no check has.
    """
    wanted, unwanted = _names(checks, "--only", only), _names(checks, "--skip", skip)
    chosen = [check for check in checks if check.id in wanted or (not wanted and (deep or check.tier is Tier.BASIC))]
    return [check for check in chosen if check.id not in unwanted]


def _names(checks: Sequence[Type[Check]], option: str, values: Iterable[str]) -> List[str]:
    names = [name.strip() for value in values for name in value.split(",")]
    known = [check.id for check in checks]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"{option} {unknown[0]}: no such check; known: {', '.join(known)}")
    return names


def in_order(checks: Sequence[Type[Check]]) -> List[Type[Check]]:
    """Order by `requires`, otherwise as given. Requirements that are not among `checks` do not count."""
    ids = {check.id for check in checks}
    ordered: List[Type[Check]] = []
    placed: set[str] = set()
    waiting = list(checks)
    while waiting:
        ready = next((check for check in waiting if all(r in placed or r not in ids for r in check.requires)), None)
        assert ready is not None, f"checks require each other in a circle: {[check.id for check in waiting]}"
        waiting.remove(ready)
        placed.add(ready.id)
        ordered.append(ready)
    return ordered
