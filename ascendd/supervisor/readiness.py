"""Readiness: whether the instance serves, proven by a token over the whole path, and what all are told of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from ascendd.errors import SelfTestFailed
from ascendd.ipc import messages as msg
from ascendd.ipc.messages import EngineState, Fault, Role
from ascendd.supervisor import event as ev
from ascendd.supervisor import status
from ascendd.supervisor.child import Child, ChildState
from ascendd.supervisor.phase import RUNNING, Phase
from ascendd.supervisor.runtime import PEERS, Runtime
from ascendd.supervisor.self_test import SelfTest


@dataclass(frozen=True)
class _Down:
    """Why there is no engine, and when the next start is due (monotonic seconds)."""

    reason: str
    until_s: float
    waits_for: str = ""

    @property
    def left_s(self) -> float:
        """Seconds until the start is due."""
        return max(0.0, self.until_s - time.monotonic())

    @property
    def text(self) -> str:
        """Why there is none, and when or for what one comes."""
        if self.waits_for:
            return f"{self.reason}; not restarted yet: {self.waits_for}"
        return status.restart_text(self.reason, self.left_s)


class Readiness:
    """Moves the instance between STARTING, SERVING and DEGRADED."""

    def __init__(self, runtime: Runtime) -> None:
        self._run = runtime
        self._self_test = SelfTest()
        self._down: _Down | None = None
        self._episode = 0  # of the data link between engine and API

    def attach(self, role: Role) -> None:
        """Link `role`, which was just configured, to its peer where that one is, too."""
        peer = PEERS.get(role)
        if peer is not None and self._run.children[peer].configured:
            self._episode += 1
            self._run.table.attach(role, peer, self._episode)

    def on_progress(self, child: Child, text: str, fraction: float) -> None:
        """Tell everybody how far the engine has loaded."""
        run = self._run
        if child.role is not Role.ENGINE or child.state is not ChildState.LOADING or run.phase not in RUNNING:
            return
        left_s = status.remaining_s(time.monotonic() - child.started_at_s, fraction, child.load_s)
        run.tell_api(EngineState(ready=False, text=text, retry_after_s=left_s))
        run.notifier.progress(text)
        run.extend_start(run.config.health.load_deadline_s)

    def prove(self) -> None:
        """Have the API ask for one token over the whole path; an engine that passed before serves meanwhile."""
        run = self._run
        engine = run.table.get(Role.ENGINE)
        if engine is None or any(run.children[role].state is not ChildState.READY for role in PEERS):
            return
        if not self._self_test.may_start(engine.run):
            return
        if self._self_test.is_proven(engine.run):
            self._serve()
        else:
            run.notifier.status("self-test")
        self._self_test.started(self._episode)
        run.table.send(Role.API, msg.RunSelfTest(self._episode))
        limit_s = run.config.health.self_test_timeout_s + run.timing.self_test_margin_s
        run.later(limit_s, ev.SelfTestOverdue(self._episode))

    def on_overdue(self, episode: int) -> None:
        """Take a self-test that was not answered as failed."""
        text = f"no token within {self._run.config.health.self_test_timeout_s:g} s"
        self.on_self_test(msg.SelfTestDone(episode, 0.0, Fault.from_error(SelfTestFailed(text))))

    def on_self_test(self, done: msg.SelfTestDone) -> None:
        """Serve after a token came back; else give the engine a moment to show a death of its own as the cause."""
        run = self._run
        engine = run.table.get(Role.ENGINE)
        if not self._self_test.take(done.episode) or run.phase not in RUNNING or engine is None:
            return
        if done.fault is None:
            run.log.info("supervisor.self_test_passed", latency_s=round(done.latency_s, 3))
            self._self_test.passed(engine.run)
            self._serve()
            return
        run.log.error("supervisor.self_test_failed", code=done.fault.code, error=done.fault.message)
        # An engine that died under the test shows as a failed test first; its own death is the truer reason.
        self._self_test.failed(engine.run)
        run.later(run.timing.self_test_grace_s, ev.SelfTestFailure(engine.run, f"self-test: {done.fault.message}"))

    def on_failure(self, run_number: int, text: str) -> None:
        """End the engine process whose self-test failed, if it still lives."""
        engine = self._run.table.get(Role.ENGINE, run_number)
        if engine is not None and engine.status is None:
            # Whichever part is at fault, the engine is the one whose state a restart renews.
            self._run.children[Role.ENGINE].fault = Fault.from_error(SelfTestFailed(text))
            engine.kill_group()

    def degrade(self, child: Child, reason: str, delay_s: float) -> None:
        """Note that `child` is down for `reason` and is started again after `delay_s`; the seconds are counted down."""
        run = self._run
        text = status.restart_text(reason, delay_s)
        if child.role is Role.ENGINE:
            self._down = _Down(reason, time.monotonic() + delay_s)
        run.phase = Phase.DEGRADED if run.was_ready else Phase.STARTING
        self._self_test.cancel()
        if child.role is Role.ENGINE:
            after_s = status.retry_after_s(delay_s, child.load_s)
            run.tell_api(EngineState(ready=False, text=text, retry_after_s=after_s))
        run.notifier.status(f"{run.phase.value}: {text}")

    def refresh(self) -> None:
        """Tell again what changes by itself: the seconds to a restart, and what the instance does without."""
        run = self._run
        if run.phase is Phase.SERVING:
            told = run.engine_state
            if (told.degraded, told.episode, told.pressure) != (run.degradations.text, run.episode, run.pressure):
                self.tell_serving()
            return
        engine = run.children[Role.ENGINE]
        if self._down is None or engine.state is not ChildState.BACKOFF or run.phase not in RUNNING:
            return
        text, left_s = self._down.text, self._down.left_s
        if text != run.engine_state.text:
            run.tell_api(EngineState(False, text, status.retry_after_s(left_s, engine.load_s)))
            run.notifier.progress(f"{run.phase.value}: {text}")

    def withdraw(self, child: Child, reason: str) -> None:
        """Answer nothing more over `child`, which hangs and is about to be ended."""
        run = self._run
        if child.role not in PEERS or run.phase not in RUNNING:
            return
        run.phase = Phase.DEGRADED if run.was_ready else Phase.STARTING
        self._self_test.cancel()
        text = f"{child.role.value} hangs ({reason}) and is being ended; it will be restarted"
        run.tell_api(EngineState(ready=False, text=text, retry_after_s=status.retry_after_s(0.0, child.load_s)))
        run.notifier.status(f"{run.phase.value}: {text}")

    def waits(self, text: str) -> None:
        """Note what the start of the engine, which is due, waits for."""
        if self._down is not None:
            self._down = replace(self._down, waits_for=text)
            self.refresh()
            # At once: it is no text that merely counts on.
            self._run.notifier.status(f"{self._run.phase.value}: {self._down.text}")

    def tell_serving(self) -> None:
        """Tell API and systemd that the instance serves, and what it does without."""
        run = self._run
        run.tell_api(EngineState(ready=True, text="serving", retry_after_s=0))
        degraded = f"; degraded: {run.degradations.text}" if run.degradations.text else ""
        if run.pressure:
            degraded += f"; no new requests: {run.pressure}"
        held = "draining, held by the operator: " if run.held else ""
        run.notifier.status(f"{held}serving {run.config.model.name} on {run.address}{degraded}")

    def _serve(self) -> None:
        run = self._run
        if run.phase is not Phase.SERVING:
            uptime_s = round(time.monotonic() - run.started_at_s, 3)
            run.log.info("supervisor.serving", address=run.address, uptime_s=uptime_s)
        run.phase = Phase.SERVING
        self._down = None
        self.tell_serving()
        if not run.was_ready:
            run.was_ready = True
            run.notifier.ready()
