"""
A worker process that fails on order: `faulty_rank.py RANK WHAT --control-fd ...`. All but that rank are as ever.

It fails in the first step from FIRST_STEP on: later than the profile run and the warm-up. Others give up a collective
after a second where WHAT is `outwait`, and `sleep-in-profile` fails at the start.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

from ascendd.engine.exec import worker
from ascendd.engine.parallel import rank_group
from ascendd.engine.runner.model_runner import ModelRunner
from ascendd.errors import DeviceOutOfMemory

FIRST_STEP = 7


def fail(what: str) -> None:
    """Do it."""
    if what == "raise":
        raise RuntimeError("the lamp went out")
    if what == "out-of-memory":
        raise DeviceOutOfMemory("NPU out of memory. Tried to allocate 24.00 MiB")
    if what == "garble":
        WORKERS[0]._channel._sock.send(b"\xff" * 64)
        time.sleep(600)
    if what in ("sleep", "outwait", "sleep-in-profile"):
        time.sleep(600)
    if what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "exit":
        os._exit(7)


WORKERS: list[worker.Worker] = []


def main() -> int:
    """Replace what fails and be a worker."""
    rank, what, argv = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    plain_execute: Callable[..., object] = ModelRunner.execute
    plain_run = worker.Worker.run

    plain_profile: Callable[..., int] = ModelRunner.profile
    plain_join: Callable[..., object] = rank_group.join_group

    def profile(self: ModelRunner) -> int:
        if self._group.place.rank == rank and what == "sleep-in-profile":
            fail(what)
        return plain_profile(self)

    def join(*args: object, **kwargs: object) -> object:
        return plain_join(*args, **kwargs | ({"timeout_s": 1.0} if what == "outwait" else {}))

    def execute(self: ModelRunner, output: object) -> object:
        if self._group.place.rank == rank and output.step_seq >= FIRST_STEP:  # type: ignore[attr-defined]
            fail(what)
        return plain_execute(self, output)

    def run(self: worker.Worker) -> None:
        WORKERS.append(self)
        plain_run(self)

    ModelRunner.execute = execute  # type: ignore[method-assign,assignment]
    ModelRunner.profile = profile  # type: ignore[method-assign]
    rank_group.join_group = join  # type: ignore[assignment]
    worker.Worker.run = run  # type: ignore[method-assign]
    return worker.main(argv)


if __name__ == "__main__":
    sys.exit(main())
