"""
OutOfMemory: what the engine does about a step for which the device had no memory, as long as it is alone on its device.

    step fails -> half its tokens, newest preempted, tried once more -> the next step is smaller still -> ... ->
    one token of one sequence, twice -> it fails alone -> three such in a row: the device itself is short, give up

With several ranks the peers may sit inside a collective, so nothing is tried again: the group ends, and the supervisor
starts it again.
"""

from __future__ import annotations

import collections
import enum
import traceback
from typing import Protocol

from ascendd.engine.sched.output import SchedulerOutput
from ascendd.engine.sched.scheduler import Scheduler
from ascendd.errors import DeviceOutOfMemory, RequestNeverFits
from ascendd.ipc.messages import Fault, SequenceFailed
from ascendd.telemetry.log import get_logger

# Requests that fail alone one after another, with no step in between that went well: not they are too large.
MAX_LONE_FAILURES = 3

_log = get_logger("engine")


class Relief(enum.Enum):
    """What was done about a step without memory."""

    SHRUNK = "shrunk"  # the budget was halved and the newest sequences preempted
    REQUEST_FAILED = "request_failed"  # a single token of a lone sequence did not fit


class Releasable(Protocol):
    """What can give memory back (runner.model_runner.ModelRunner)."""

    def release_memory(self) -> None:
        """Give memory that no tensor uses back to the device."""


class OutOfMemory:
    """Counts and answers the steps for which the device had no memory."""

    def __init__(self, scheduler: Scheduler, runner: Releasable, *, is_alone: bool) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._is_alone = is_alone
        self._num_lone_failures = 0
        self._counts: collections.Counter[Relief] = collections.Counter()

    @property
    def may_retry(self) -> bool:
        """Whether a smaller step may be tried."""
        return self._is_alone and self._num_lone_failures < MAX_LONE_FAILURES

    def step_done(self) -> None:
        """Note that a step went well."""
        self._num_lone_failures = 0

    def relieve(self, output: SchedulerOutput, error: DeviceOutOfMemory) -> list[SequenceFailed]:
        """Make the next step smaller than `output`; return the sequence that cannot be served at all, if there is."""
        _drop_frames(error)
        self._runner.release_memory()
        failed = self._scheduler.relieve(output)
        facts = {"step": output.step_seq, "num_tokens": output.num_tokens, "reason": error.message}
        if failed is None:
            self._counts[Relief.SHRUNK] += 1
            limit = self._scheduler.budget.limit
            _log.warning("engine.out_of_memory", **facts, token_limit=limit, num_running=self._scheduler.num_running)
            return []
        self._counts[Relief.REQUEST_FAILED] += 1
        self._num_lone_failures += 1
        _log.error(
            "engine.request_never_fits", **facts, request_id=failed.request_id, sequence_tokens=failed.num_tokens
        )
        never = RequestNeverFits(
            f"the request takes more device memory than there is: with {failed.num_tokens} tokens, prompt and answer "
            f"together, not even one more could be computed alone ({error.message})",
            num_tokens=failed.num_tokens,
        )
        return [SequenceFailed(failed.seq_id, Fault.from_error(never))]

    def take_counts(self) -> dict[Relief, int]:
        """Return what was done since the last call."""
        counts, self._counts = self._counts, collections.Counter()
        return dict(counts)


def _drop_frames(error: BaseException) -> None:
    """Free the tensors of the failed step: they are locals of frames that the error's traceback holds on to."""
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link.__traceback__ = None
        link = link.__cause__
