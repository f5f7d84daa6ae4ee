"""DrillFaults: faults that `ascendd drill` asks for, made in the real process. Only where recovery.drills is true."""

from __future__ import annotations

import queue
import threading
import time

from ascendd.engine.exec.executor import Executor, InProcessExecutor, Runner
from ascendd.engine.runner.runner_report import RunnerReport
from ascendd.engine.sched.output import ModelRunnerOutput, SchedulerOutput
from ascendd.errors import DeviceLost, DeviceOutOfMemory
from ascendd.ipc.messages import InjectFault
from ascendd.telemetry.log import get_logger

# Fast enough to stand out of a process of gigabytes within seconds, slow enough to hurt no host.
LEAK_BYTES_PER_S = 8_000_000
_PAUSE_S = 0.25

_log = get_logger("engine")


class DrillRunner:
    """A runner whose next step finds no device memory once `fail_next` is set; it has computed nothing then."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.vocab_size: int = runner.vocab_size
        self.report: RunnerReport = runner.report
        self.fail_next = False

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Compute, or raise DeviceOutOfMemory once."""
        if self.fail_next:
            self.fail_next = False
            raise DeviceOutOfMemory("drill: this step is told that the device has no memory")
        return self._runner.execute(output)

    def release_memory(self) -> None:
        """Have the runner give memory back."""
        self._runner.release_memory()

    def load_adapter(self, adapter_id: int, path: str) -> int:
        """Have the runner read it."""
        return self._runner.load_adapter(adapter_id, path)

    def drop_adapter(self, adapter_id: int) -> None:
        """Have the runner forget it."""
        self._runner.drop_adapter(adapter_id)


class DrillFaults:
    """Takes orders from any thread; `fire` carries them out inside the next step of the engine."""

    def __init__(self, executor: Executor) -> None:
        self._orders: queue.SimpleQueue[InjectFault] = queue.SimpleQueue()
        self._runner: DrillRunner | None = None
        if isinstance(executor, InProcessExecutor):
            executor.runner = self._runner = DrillRunner(executor.runner)

    def take(self, order: InjectFault) -> None:
        """Take an order; a leak begins at once, beside the steps."""
        _log.warning("engine.drill", kind=order.kind)
        if order.kind == "leak":
            threading.Thread(target=_leak, args=(order.seconds,), name="drill-leak", daemon=True).start()
        else:
            self._orders.put(order)

    def fire(self) -> None:
        """Do in the step that begins what was ordered: hang without end, or raise what a device would."""
        while not self._orders.empty():
            kind = self._orders.get().kind
            if kind == "hang":
                while True:
                    time.sleep(3600)
            elif kind == "device-lost":
                raise DeviceLost("drill: the device is told to be lost")
            elif kind == "oom":
                if self._runner is None:
                    raise DeviceOutOfMemory("drill: a step of the group is told that a device has no memory")
                self._runner.fail_next = True


def _leak(seconds: float) -> None:
    """Grow for `seconds`, then give all of it back."""
    kept: list[bytes] = []
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        # Random enough to be nobody's shared page: bytes() of zeros would never become resident.
        kept.append(b"\xa5" * int(LEAK_BYTES_PER_S * _PAUSE_S))
        time.sleep(_PAUSE_S)
