"""What a drill does to the engine's next step."""

from __future__ import annotations

import pytest

from ascendd.engine.drill_faults import DrillFaults
from ascendd.engine.exec.executor import InProcessExecutor
from ascendd.engine.runner.runner_report import RunnerReport
from ascendd.errors import DeviceLost, DeviceOutOfMemory
from ascendd.ipc.messages import InjectFault


class CountingRunner:
    """A runner that counts its steps."""

    vocab_size = 8
    report = RunnerReport()

    def __init__(self):
        self.num_steps = 0

    def execute(self, output):
        self.num_steps += 1
        return output

    def release_memory(self):
        self.num_steps += 100


def test_a_step_without_memory_fails_once_and_before_it_began():
    """The runner has computed nothing of it, the next step is computed, and memory is given back as ever."""
    runner = CountingRunner()
    executor = InProcessExecutor(runner)
    faults = DrillFaults(executor)
    faults.take(InjectFault("oom"))
    faults.fire()
    executor.submit("first")

    with pytest.raises(DeviceOutOfMemory, match="drill"):
        executor.collect()
    executor.release_memory()
    executor.submit("second")
    assert executor.collect() == "second"
    assert runner.num_steps == 101


def test_a_group_without_memory_ends_as_one():
    """No executor of this process: the step itself raises, as it would where a rank had none."""
    faults = DrillFaults(object())
    faults.take(InjectFault("oom"))

    with pytest.raises(DeviceOutOfMemory):
        faults.fire()


def test_a_lost_device_and_nothing_at_all():
    """Each order acts once; without one a step is left alone."""
    faults = DrillFaults(InProcessExecutor(CountingRunner()))
    faults.take(InjectFault("device-lost"))

    with pytest.raises(DeviceLost, match="drill"):
        faults.fire()
    assert faults.fire() is None
