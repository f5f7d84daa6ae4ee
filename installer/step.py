"""Step: one thing that an installed host has. Each tells what is there, what it would do, and how to take it back."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, List, Optional, Sequence, Tuple

from ascendd.errors import HostError

if TYPE_CHECKING:
    from .action import Action
    from .host import Host
    from .state import InstallState


class Found(enum.Enum):
    """What a step sees on the host before it does anything."""

    ABSENT = "absent"  # Nothing of it is there.
    PRESENT = "present"  # It is there as wanted; nothing is to be done.
    OLDER = "older"  # Another version is there, and this step replaces it.
    BROKEN = "broken"  # An installation that was not finished.


class StepStatus(enum.Enum):
    """How far a step is; the order below is the order of its life, and each is on disk before the next begins."""

    PENDING = "pending"  # Nothing was touched.
    ACTING = "acting"  # Its actions have begun; after a kill they are done again from the first.
    ACTED = "acted"  # Its actions have ended; the proof is outstanding.
    DONE = "done"  # Proven.
    UNDOING = "undoing"  # Uninstall has begun to take it back.
    UNDONE = "undone"  # Taken back, or it was there before and stays.


@dataclass(frozen=True)
class Detection:
    """What was found; `version` is what is installed, None without one; `sentence` is for the operator."""

    found: Found
    version: Optional[str]
    sentence: str


class Step(ABC):
    """
    One step. All methods but those of the returned actions are read-only.

    `requires` names the steps that come before it; `estimate_s` is a usual duration, for the time left.
    """

    id: str
    title: str
    requires: Tuple[str, ...] = ()
    estimate_s: float = 1.0

    @abstractmethod
    def detect(self, host: Host) -> Detection:
        """Tell what is there."""

    def check(self, host: Host, state: InstallState) -> List[str]:
        """Return why the step must not be done now, one sentence each; asked of all before anything is touched."""
        return []

    @abstractmethod
    def act(self, host: Host, found: Found) -> Sequence[Action]:
        """Return what is to be done where `found` is what the run began with; every action can be done again."""

    @abstractmethod
    def prove(self, host: Host) -> str:
        """Return the sentence that says what was seen. Raises HostError when the step did not reach its aim."""

    def look_again(self, host: Host, claim: str, remedy: Optional[str] = None) -> str:
        """Return what is detected now, the usual proof. Raises HostError where it belies the `claim` of the action."""
        detection = self.detect(host)
        if detection.found is not Found.PRESENT:
            raise HostError(f"{detection.sentence}, though {claim}", remedy=remedy)
        return detection.sentence

    @abstractmethod
    def undo(self, host: Host, state: InstallState) -> Sequence[Action]:
        """Return what takes the step back; what was there before this installer came stays."""
