"""Executor: takes the steps of the engine to the ranks that compute them; in this process where there is one rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import Protocol

from ascendd.engine.runner.runner_report import RunnerReport
from ascendd.engine.sched.output import ModelRunnerOutput, SchedulerOutput
from ascendd.ipc.rank_row import RankRow


class Runner(Protocol):
    """What computes a step (runner.model_runner.ModelRunner)."""

    vocab_size: int
    report: RunnerReport

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Compute the chunks and return a token for each that samples."""

    def release_memory(self) -> None:
        """Give memory that no tensor uses back to the device, after a step for which there was none."""

    def load_adapter(self, adapter_id: int, path: str) -> int:
        """Read an adapter into host memory under `adapter_id` and return its bytes. Raises AdapterInvalid."""

    def drop_adapter(self, adapter_id: int) -> None:
        """Forget an adapter."""


class Executor(ABC):
    """
    Steps go in by `submit` and come out by `collect`, in the same order, `max_in_flight` at most in between.

    Whatever goes wrong with a rank is raised by `collect`, `check` and `load_adapter`, and is the end of all of them.
    """

    vocab_size: int
    report: RunnerReport
    max_in_flight: int = 1

    @abstractmethod
    def submit(self, output: SchedulerOutput) -> None:
        """Begin a step."""

    @abstractmethod
    def collect(self) -> ModelRunnerOutput:
        """Wait for the oldest step and return what it drew. Raises DeviceFault or EngineFault."""

    @abstractmethod
    def run_now(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Compute a step beside those that are submitted, which it leaves as they are. Raises as `collect`."""

    @abstractmethod
    def load_adapter(self, adapter_id: int, path: str) -> int:
        """Read an adapter into host memory under `adapter_id` and return its bytes. Raises AdapterInvalid."""

    @abstractmethod
    def drop_adapter(self, adapter_id: int) -> None:
        """Forget an adapter."""

    @abstractmethod
    def release_memory(self) -> None:
        """Give memory back before a step is tried again."""

    def filenos(self) -> list[int]:
        """Return the descriptors that become readable when `check` has something to look at."""
        return []

    def rank_rows(self) -> list[RankRow]:
        """Return what each rank last told, for the operator; from any thread. None where this process is the rank."""
        return []

    @abstractmethod
    def check(self) -> None:
        """Look at the ranks while no step runs. Raises EngineFault."""

    @abstractmethod
    def close(self) -> None:
        """End what was started."""


class InProcessExecutor(Executor):
    """One rank in this process: a step runs when it is collected."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.vocab_size = runner.vocab_size
        self.report = runner.report
        self._submitted: deque[SchedulerOutput] = deque()

    def submit(self, output: SchedulerOutput) -> None:
        """Keep the step."""
        self._submitted.append(output)

    def collect(self) -> ModelRunnerOutput:
        """Run the oldest step."""
        return self.runner.execute(self._submitted.popleft())

    def run_now(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Run the step."""
        return self.runner.execute(output)

    def release_memory(self) -> None:
        """Have the runner give it back."""
        self.runner.release_memory()

    def load_adapter(self, adapter_id: int, path: str) -> int:
        """Have the runner read it."""
        return self.runner.load_adapter(adapter_id, path)

    def drop_adapter(self, adapter_id: int) -> None:
        """Have the runner forget it."""
        self.runner.drop_adapter(adapter_id)

    def check(self) -> None:
        """There is nothing to look at: this process is the rank."""

    def close(self) -> None:
        """There is nothing to end."""
