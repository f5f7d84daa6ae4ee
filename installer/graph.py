"""The order of the steps: each after what it requires, otherwise as written."""

from __future__ import annotations

from typing import List, Sequence

from .step import Step


def in_order(steps: Sequence[Step]) -> List[Step]:
    """Return the steps in an order that keeps every requirement; a cycle or an unknown id is a defect."""
    known = {step.id for step in steps}
    for step in steps:
        assert set(step.requires) <= known, f"{step.id} requires {set(step.requires) - known}, which are no steps here"
    ordered: List[Step] = []
    done: set[str] = set()
    waiting = list(steps)
    while waiting:
        ready = next((step for step in waiting if set(step.requires) <= done), None)
        assert ready is not None, f"the steps {[step.id for step in waiting]} require each other"
        waiting.remove(ready)
        ordered.append(ready)
        done.add(ready.id)
    return ordered
