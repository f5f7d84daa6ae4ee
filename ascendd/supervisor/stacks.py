"""Stacks: what every thread of an instance does at the moment when one of its processes hangs."""

from __future__ import annotations

import os
import signal
import time

from ascendd.ipc.messages import Role
from ascendd.ipc.stack_pipe import MAX_CHARS, own_stacks
from ascendd.supervisor import event as ev
from ascendd.supervisor.process import ChildProcess
from ascendd.supervisor.runtime import Runtime

# A process on a busy host may take a while to be given the processor; one that is stopped never answers.
ANSWER_S = 3.0
_LOOK_S = 0.1
# A line of the journal is cut beyond 48 KiB; the incident bundle has the whole.
_LOGGED_CHARS = 40_000
SILENT = "(it does not answer; it may be stopped)"


class Stacks:
    """
    Asks all processes for their stacks, waits for the answers, logs one whole text each, then ends those that hang.

    All are asked, since what hangs may be waiting for another. Only then SIGABRT goes to one that hangs, and SIGKILL to
    its group, which one that did not answer gets at once.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._run = runtime
        self._hung: list[ChildProcess] = []
        self._asked: list[ChildProcess] = []
        self._texts: dict[Role, str] = {}
        self._deadline_s = 0.0
        self._own = ""

    def ask(self, hung: ChildProcess) -> None:
        """Begin a round because of `hung`, or have the round that is on end it as well."""
        run = self._run
        self._hung.append(hung)
        if len(self._hung) > 1:
            return
        self._own = own_stacks()
        # Before Hello a process has no handler yet, and the signal would end it.
        self._asked = [process for process in run.table if run.children[process.spec.role].configured]
        self._texts = {process.spec.role: "" for process in self._asked}
        self._deadline_s = time.monotonic() + ANSWER_S
        for process in self._asked:
            process.stacks.read()  # what came late for an earlier round is no answer to this one
            process.signal(signal.SIGUSR1)
        run.later(_LOOK_S, ev.StacksDue())

    def on_due(self) -> None:
        """Take what has come, and look again until all have answered or had their time."""
        is_quiet = True
        for process in self._asked:
            if part := process.stacks.read():
                is_quiet = False
                self._texts[process.spec.role] += part
        if time.monotonic() < self._deadline_s and not (is_quiet and all(self._texts.values())):
            self._run.later(_LOOK_S, ev.StacksDue())
        else:
            self._conclude()

    def _conclude(self) -> None:
        run = self._run
        run.stacks = {"supervisor": self._own}
        run.log.error("supervisor.stacks", child="supervisor", pid=os.getpid(), stacks=self._own[:_LOGGED_CHARS])
        for process in self._asked:
            text = (self._texts[process.spec.role] or SILENT)[:MAX_CHARS]
            run.stacks[process.spec.role.value] = text
            run.log.error(
                "supervisor.stacks", child=process.spec.role.value, pid=process.pid, stacks=text[:_LOGGED_CHARS]
            )
        for process in self._hung:
            if process in self._asked and not self._texts[process.spec.role]:
                run.events.put_nowait(ev.KillDue(process.spec.role, process.run))
                continue
            process.signal(signal.SIGABRT)
            run.later(run.timing.abort_grace_s, ev.KillDue(process.spec.role, process.run))
        self._hung = []
        self._asked = []
