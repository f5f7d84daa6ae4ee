"""
RecoveryPolicy: what follows from the end of a child. One pure policy: ends and the time go in, reactions come out.

    class of the failure             what is done
    configuration, model, host,
    installation                     never retried: the instance ends with the error
    crash, host memory               backoff with jitter; recovery.max_restarts within window_s, then FAILED
    hang                             as a crash, and the device is looked at before the next start
    device memory                    as a crash, with a smaller KV cache (MemoryLadder); the third time FAILED
    hardware                         the device is looked at; two restarts within the window, then FAILED. A chip that
                                     is named twice, or stays at fault, is left out where
                                     recovery.allow_smaller_parallel allows that

A child that is not essential is started again whatever it ended of. Each end acts once: what is told of a process whose
end was acted on, or of one before it, is stale.
"""

from __future__ import annotations

import enum
import random as dice
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ascendd.config.schema import InstanceConfig
from ascendd.errors import AscenddError, DeviceOutOfMemory, ExitCode, RestartsExhausted
from ascendd.ipc.messages import Role
from ascendd.supervisor.child_exit import Cause, ChildExit
from ascendd.supervisor.failure import NEVER_RETRIED, FailureClass, classify
from ascendd.supervisor.memory_ladder import Exhausted, MemoryLadder, Rung
from ascendd.supervisor.quarantine import Chips, Placement
from ascendd.supervisor.restart import PERMANENT_EXIT_CODES, FailureWindow, GiveUp, RestartPolicy
from ascendd.supervisor.spec import ChildSpec

# A device that failed of itself is given fewer chances than a process that crashed.
MAX_HARDWARE_RESTARTS = 2

_CACHE_REMEDY = (
    "Lower engine.gpu_memory_utilization or engine.max_num_batched_tokens, and see with `ascendd doctor` who else "
    "holds memory of the device."
)
_HOST_MEMORY_REMEDY = (
    "Raise MemoryMax= of the unit or free host memory; `ascendd plan MODEL` tells what the instance takes."
)


class Action(enum.Enum):
    """What the supervisor does next."""

    NOTHING = "nothing"
    RESTART = "restart"
    FAIL_INSTANCE = "fail_instance"


@dataclass(frozen=True)
class Reaction:
    """
    What follows from the end of a child.

    A restart has a delay in seconds, the number of failures in the window, whether the device is to be looked at first,
    for want of device memory the rung with the size of the next cache, and for a chip left out the new placement. A
    failed instance has the error to end with. `episode` numbers what was acted on.
    """

    action: Action
    failure: FailureClass | None = None
    episode: int = 0
    delay_s: float = 0.0
    num_failures: int = 0
    checks_device: bool = False
    rung: Rung | None = None
    placement: Placement | None = None
    error: AscenddError | None = None


_NOTHING = Reaction(Action.NOTHING)


class RecoveryPolicy:
    """Remembers the failures of an instance. `random` gives numbers in 0..1."""

    def __init__(
        self,
        policies: Mapping[Role, RestartPolicy],
        window_s: float,
        random: Callable[[], float] = dice.random,
        chips: Chips | None = None,
    ) -> None:
        self._chips = chips
        self._policies = policies
        self._random = random
        self._ladder = MemoryLadder(window_s)
        self._hardware = FailureWindow(window_s)
        self._acted: dict[Role, int] = {}
        self._episode = 0

    @classmethod
    def of(cls, config: InstanceConfig, specs: Mapping[Role, ChildSpec], device_kind: str) -> RecoveryPolicy:
        """Return the policy of an instance whose children are started as `specs` says."""
        policies = {
            role: RestartPolicy.from_config(
                config.recovery, device_kind=device_kind, loads_device=spec.loads_device, essential=spec.essential
            )
            for role, spec in specs.items()
        }
        chips = Chips.of(config) if config.recovery.allow_smaller_parallel else None
        return cls(policies, config.recovery.window_s, chips=chips)

    def measured(self, *, num_blocks: int, block_size: int, max_model_len: int) -> None:
        """Take the cache of an engine that is ready, from which a smaller one is reckoned."""
        self._ladder.measured(num_blocks=num_blocks, block_size=block_size, max_model_len=max_model_len)

    def leave_out(self, reasons: Mapping[int, str]) -> Placement | None:
        """Take chips out that stay at fault; return where to go on without them, None where that may or can not be."""
        placement = None if self._chips is None else self._chips.leave_out(reasons)
        if placement is not None:
            self._hardware = FailureWindow(self._hardware.window_s)
        return placement

    def on_end(self, end: ChildExit, run: int, now_s: float) -> Reaction:
        """Decide what follows from the end of process number `run` of its role at `now_s` (monotonic seconds)."""
        if end.cause is Cause.ASKED or run <= self._acted.get(end.role, 0):
            return _NOTHING
        self._acted[end.role] = run
        self._episode += 1
        failure = classify(end)
        policy = self._policies[end.role]
        if not policy.is_endless:
            if failure in NEVER_RETRIED:
                return self._fail(failure, _permanent_error(end))
            if failure is FailureClass.DEVICE_MEMORY:
                return self._on_device_memory(end, policy, now_s)
            if failure is FailureClass.HARDWARE:
                placement = None if self._chips is None else self._chips.on_fault(end.fault, now_s)
                if placement is not None:
                    self._hardware = FailureWindow(self._hardware.window_s)
                    return replace(self._restart(end, failure, policy, now_s), placement=placement)
                count = self._hardware.add(now_s)
                if count > MAX_HARDWARE_RESTARTS:
                    reason = f"{count} device faults within {self._hardware.window_s:g} s"
                    return self._fail(failure, _exhausted(end, reason))
        return self._restart(end, failure, policy, now_s)

    def _on_device_memory(self, end: ChildExit, policy: RestartPolicy, now_s: float) -> Reaction:
        rung = self._ladder.on_out_of_memory(now_s)
        if isinstance(rung, Exhausted):
            error = DeviceOutOfMemory(f"{end.describe()}; {rung.reason}", remedy=_CACHE_REMEDY)
            return self._fail(FailureClass.DEVICE_MEMORY, error)
        return self._restart(end, FailureClass.DEVICE_MEMORY, policy, now_s, rung)

    def _restart(
        self, end: ChildExit, failure: FailureClass, policy: RestartPolicy, now_s: float, rung: Rung | None = None
    ) -> Reaction:
        decision = policy.on_failure(now_s, self._random)
        if isinstance(decision, GiveUp):
            return self._fail(failure, _exhausted(end, decision.reason))
        return Reaction(
            Action.RESTART,
            failure,
            self._episode,
            decision.delay_s,
            decision.num_failures,
            checks_device=failure in (FailureClass.HANG, FailureClass.HARDWARE),
            rung=rung,
        )

    def _fail(self, failure: FailureClass, error: AscenddError) -> Reaction:
        return Reaction(Action.FAIL_INSTANCE, failure, self._episode, error=error)


def _permanent_error(end: ChildExit) -> AscenddError:
    error = None if end.fault is None else end.fault.to_error()
    # The status is the truth for systemd; the words count where they go with it, or where it says nothing permanent.
    if error is not None and (end.status not in PERMANENT_EXIT_CODES or error.exit_code == end.status):
        return error
    return AscenddError(end.describe(), exit_status=end.status)


def _exhausted(end: ChildExit, reason: str) -> RestartsExhausted:
    remedy = end.fault.remedy if end.fault is not None and end.fault.remedy else None
    if end.cause is Cause.HOST_MEMORY:
        remedy = _HOST_MEMORY_REMEDY
    error = RestartsExhausted(f"{end.describe()}; {reason}", remedy=remedy)
    assert error.exit_code is ExitCode.ENGINE
    return error
