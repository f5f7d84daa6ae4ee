"""Supervisor: the loop of one instance. Events in, effects out; the pure modules beside it decide what to do."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import time
from collections.abc import Mapping

import msgspec

from ascendd.config.schema import InstanceConfig
from ascendd.errors import AscenddError, ProtocolMismatch, SelfTestFailed
from ascendd.host.systemd import Notifier
from ascendd.ipc import messages as msg
from ascendd.ipc.messages import EngineState, Fault, Role
from ascendd.supervisor import event as ev
from ascendd.supervisor import status
from ascendd.supervisor.board import StatsBoard
from ascendd.supervisor.child import Child, ChildState
from ascendd.supervisor.health import Deadlines, HealthMonitor
from ascendd.supervisor.phase import RUNNING, Outcome, Phase, Timing
from ascendd.supervisor.process import ChildProcess
from ascendd.supervisor.process_table import ProcessTable
from ascendd.supervisor.recovery import Action, ChildExit, exit_code_of, react
from ascendd.supervisor.restart import RestartPolicy
from ascendd.supervisor.self_test import SelfTest
from ascendd.supervisor.sockets import address_of
from ascendd.supervisor.spec import ChildSpec
from ascendd.telemetry import log

# Engine first: nothing may be generated for an API that is gone. Log writer last: it takes everybody's last lines.
_STOP_ORDER = (Role.ENGINE, Role.API, Role.METRICS, Role.LOGWRITER)
_PEERS = {Role.ENGINE: Role.API, Role.API: Role.ENGINE}
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Supervisor:
    """Runs the children of one instance until a signal ends it or one of them cannot be kept alive."""

    def __init__(
        self,
        config: InstanceConfig,
        instance: str,
        specs: Mapping[Role, ChildSpec],
        listeners: Mapping[str, socket.socket],
        *,
        device_kind: str = "cpu",
        log_reader: int | None = None,
        notifier: Notifier | None = None,
        watchdog_s: float | None = None,
        deadlines: Deadlines | None = None,
        timing: Timing | None = None,
    ) -> None:
        self._config = config
        self._config_json = msgspec.json.encode(config)
        self._specs = specs
        self._address = address_of(listeners["api"])
        self._notifier = notifier or Notifier()
        self._watchdog_s = watchdog_s
        self._timing = timing or Timing()
        self._monitor = HealthMonitor(deadlines or Deadlines(step_s=config.health.step_deadline_s))
        self._children = {role: Child(role) for role in specs}
        self._policies = {
            role: RestartPolicy.from_config(
                config.recovery, device_kind=device_kind, loads_device=spec.loads_device, essential=spec.essential
            )
            for role, spec in specs.items()
        }
        self._events: asyncio.Queue[ev.Event] = asyncio.Queue()
        self._table = ProcessTable(specs, listeners, log_reader, self._events.put_nowait)
        self._board = StatsBoard(instance, config.model.name or "")
        self._log = log.get_logger("supervisor")
        self._phase = Phase.STARTING
        self._was_ready = False
        self._episode = 0  # of the data link between engine and API
        self._self_test = SelfTest()
        self._engine_state = EngineState(ready=False, text="starting")
        self._outcome = Outcome(0)
        self._started_at_s = self._stats_at_s = time.monotonic()
        self._measured_at_s = -self._timing.measure_s

    async def run(self) -> Outcome:
        """Start everything and return when all children are gone. Raises EngineFault where no process can be made."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._events.put_nowait, ev.SignalReceived(number))
        loop.add_signal_handler(signal.SIGCHLD, self._table.reap)
        self._notifier.status("starting")
        try:
            for role in self._specs:
                self._start(role)
            self._events.put_nowait(ev.Tick())
            self._beat()
            while self._phase is not Phase.STOPPED:
                self._handle(await self._events.get())
        finally:
            self._table.kill_all()
            for number in (*_SIGNALS, signal.SIGCHLD):
                loop.remove_signal_handler(number)
        return self._outcome

    # --- events in ------------------------------------------------------------------------------------------------

    def _handle(self, event: ev.Event) -> None:
        match event:
            case ev.MessageReceived(role, run, message):
                if (process := self._table.get(role, run)) is not None:
                    self._on_message(self._children[role], process, message)
            case ev.ChildEnded(role, run, end_status):
                if (process := self._table.get(role, run)) is not None:
                    self._on_end(self._children[role], process, end_status)
            case ev.StartDue(role, num_starts):
                child = self._children[role]
                if child.state is ChildState.BACKOFF and child.num_starts == num_starts:
                    self._start(role)
            case ev.SelfTestOverdue(episode):
                text = f"no token within {self._config.health.self_test_timeout_s:g} s"
                self._on_self_test(msg.SelfTestDone(episode, 0.0, Fault.from_error(SelfTestFailed(text))))
            case ev.SelfTestFailure(run, text):
                self._on_self_test_failure(run, text)
            case ev.KillDue(role, run):
                if (process := self._table.get(role, run)) is not None and process.status is None:
                    self._log.warning("supervisor.child_killed", child=role.value, pid=process.pid)
                    process.kill_group()
            case ev.DrainOver():
                self._stop_all()
            case ev.SignalReceived(number):
                self._on_signal(signal.Signals(number))
            case ev.Tick():
                self._on_tick()

    def _on_message(self, child: Child, process: ChildProcess, message: object) -> None:
        child.heard_at_s = time.monotonic()
        match message:
            case msg.Hello(_, _, version):
                self._on_hello(child, process, version)
            case msg.Progress(phase, fraction):
                self._on_progress(child, status.progress_text(phase, fraction), fraction)
            case msg.Ready(facts) if child.state is ChildState.LOADING:
                child.ready(time.monotonic())
                load_s = round(child.load_s or 0.0, 3)
                self._log.info("supervisor.child_ready", child=child.role.value, load_s=load_s, **facts)
                if child.role in _PEERS:
                    self._prove()
            case msg.Heartbeat():
                child.heartbeat = message
            case msg.Stats():
                self._board.take(child.role, message)
            case msg.SelfTestDone():
                self._on_self_test(message)
            case msg.Drained(num_aborted):
                self._log.info("supervisor.drained", num_aborted=num_aborted)
                if self._phase is Phase.DRAINING:
                    self._stop_all()
            case msg.ChildFault(fault):
                child.fault = fault

    def _on_hello(self, child: Child, process: ChildProcess, version: int) -> None:
        if child.state is not ChildState.STARTING:
            return
        if version != msg.PROTOCOL_VERSION:
            text = f"{child.role.value} speaks protocol {version}, the supervisor {msg.PROTOCOL_VERSION}"
            child.fault = Fault.from_error(ProtocolMismatch(text))
            process.kill_group()
            return
        child.hello(time.monotonic())
        process.send(msg.Configure(self._config_json, process.run))
        if child.role is Role.API:
            process.send(self._engine_state)
        peer = _PEERS.get(child.role)
        if peer is not None and self._children[peer].configured:
            self._episode += 1
            self._table.attach(child.role, peer, self._episode)

    def _on_progress(self, child: Child, text: str, fraction: float) -> None:
        if child.role is not Role.ENGINE or child.state is not ChildState.LOADING or self._phase not in RUNNING:
            return
        left_s = status.remaining_s(time.monotonic() - child.started_at_s, fraction, child.load_s)
        self._tell_api(EngineState(ready=False, text=text, retry_after_s=left_s))
        self._notifier.status(text)
        if not self._was_ready:
            self._notifier.extend_timeout(self._timing.extend_s)

    def _on_self_test(self, done: msg.SelfTestDone) -> None:
        engine = self._table.get(Role.ENGINE)
        if not self._self_test.take(done.episode) or self._phase not in RUNNING or engine is None:
            return
        if done.fault is None:
            self._log.info("supervisor.self_test_passed", latency_s=round(done.latency_s, 3))
            self._self_test.passed(engine.run)
            self._serve()
            return
        self._log.error("supervisor.self_test_failed", code=done.fault.code, error=done.fault.message)
        # An engine that died under the test shows as a failed test first; its own death is the truer reason.
        self._self_test.failed(engine.run)
        self._later(self._timing.self_test_grace_s, ev.SelfTestFailure(engine.run, f"self-test: {done.fault.message}"))

    def _on_self_test_failure(self, run: int, text: str) -> None:
        engine = self._table.get(Role.ENGINE, run)
        if engine is not None and engine.status is None:
            # Whichever part is at fault, the engine is the one whose state a restart renews.
            self._children[Role.ENGINE].fault = Fault.from_error(SelfTestFailed(text))
            engine.kill_group()

    def _on_end(self, child: Child, process: ChildProcess, end_status: int) -> None:
        now_s = time.monotonic()
        role = child.role
        asked = child.state is ChildState.STOPPING
        self._table.remove(role)
        self._board.child_ended(role)
        end = ChildExit(role, end_status, child.fault, asked=asked, hung=process.hung)
        if asked:
            child.exited(now_s)
            self._stop_next()
            return
        facts = {"child": role.value, "pid": process.pid, "status": end_status, "cause": end.cause.value}
        self._log.error("supervisor.child_ended", **facts, reason=end.describe())
        if self._phase not in RUNNING:
            child.back_off(now_s)
            child.cancel(now_s)
            if role is Role.API:  # an engine that dies while draining leaves the API its streams to end
                self._stop_all()
            self._stop_next()
            return
        reaction = react(end, self._policies[role], now_s, random.random)
        if reaction.action is Action.FAIL_INSTANCE:
            assert reaction.error is not None
            child.fail(now_s)
            self._fail(reaction.error)
            return
        child.back_off(now_s)
        self._board.count_restart(role)
        delay_s = reaction.delay_s
        self._log.info(
            "supervisor.restart", child=role.value, delay_s=round(delay_s, 3), num_failures=reaction.num_failures
        )
        self._later(delay_s, ev.StartDue(role, child.num_starts))
        if role in _PEERS:
            self._degrade(child, status.restart_text(end.describe(), delay_s), delay_s)

    def _on_signal(self, number: signal.Signals) -> None:
        self._log.info("supervisor.signal", signal=number.name)
        if number is signal.SIGHUP:
            if (writer := self._table.get(Role.LOGWRITER)) is not None:
                writer.signal(signal.SIGHUP)
        elif self._phase in RUNNING:
            self._drain()
        elif self._phase is Phase.DRAINING:
            self._table.send(Role.API, msg.Drain(0.0))
            self._later(self._timing.drain_margin_s, ev.DrainOver())

    def _on_tick(self) -> None:
        now_s = time.monotonic()
        watched = [self._children[process.spec.role] for process in self._table if not process.hung]
        for child, reason in self._monitor.judge(watched, now_s):
            process = self._table.get(child.role)
            assert process is not None
            process.hung = True
            self._log.error("supervisor.child_hung", child=child.role.value, pid=process.pid, reason=reason)
            process.signal(signal.SIGABRT)
            self._later(self._timing.abort_grace_s, ev.KillDue(child.role, process.run))
        self._notifier.settle()
        if self._phase is Phase.STARTING:
            self._notifier.extend_timeout(self._timing.extend_s)
        if now_s - self._measured_at_s >= self._timing.measure_s:
            self._measured_at_s = now_s
            self._board.measure(os.getpid(), {process.spec.role: process.pid for process in self._table})
        self._log_stats(now_s)
        self._board.set_states(self._children, self._phase is Phase.SERVING)
        metrics = self._table.get(Role.METRICS)
        # A metrics process that does not read gets no second snapshot on top of the first.
        if metrics is not None and self._children[Role.METRICS].configured and not metrics.channel.num_pending_bytes:
            metrics.send(self._board.snapshot())
        self._later(self._timing.tick_s, ev.Tick())

    def _log_stats(self, now_s: float) -> None:
        interval_s = self._config.log.stats_interval_s
        if interval_s and now_s - self._stats_at_s >= interval_s:
            self._stats_at_s = now_s
            if (line := self._board.stats_line(now_s)) is not None:
                self._log.info("supervisor.stats", **line)

    # --- effects out ----------------------------------------------------------------------------------------------

    def _start(self, role: Role) -> None:
        child = self._children[role]
        child.start(time.monotonic())
        process = self._table.start(role, child.num_starts)
        self._log.info("supervisor.child_started", child=role.value, pid=process.pid, start=child.num_starts)

    def _prove(self) -> None:
        """Have the API ask for one token over the whole path; an engine that passed before serves meanwhile."""
        engine = self._table.get(Role.ENGINE)
        if engine is None or any(self._children[role].state is not ChildState.READY for role in _PEERS):
            return
        if not self._self_test.may_start(engine.run):
            return
        if self._self_test.is_proven(engine.run):
            self._serve()
        else:
            self._notifier.status("self-test")
        self._self_test.started(self._episode)
        self._table.send(Role.API, msg.RunSelfTest(self._episode))
        limit_s = self._config.health.self_test_timeout_s + self._timing.self_test_margin_s
        self._later(limit_s, ev.SelfTestOverdue(self._episode))

    def _serve(self) -> None:
        if self._phase is not Phase.SERVING:
            uptime_s = round(time.monotonic() - self._started_at_s, 3)
            self._log.info("supervisor.serving", address=self._address, uptime_s=uptime_s)
        self._phase = Phase.SERVING
        self._tell_api(EngineState(ready=True, text="serving", retry_after_s=0))
        self._notifier.status(f"serving {self._config.model.name} on {self._address}")
        if not self._was_ready:
            self._was_ready = True
            self._notifier.ready()

    def _degrade(self, child: Child, text: str, delay_s: float) -> None:
        self._phase = Phase.DEGRADED if self._was_ready else Phase.STARTING
        self._self_test.cancel()
        if child.role is Role.ENGINE:
            after_s = status.retry_after_s(delay_s, child.load_s)
            self._tell_api(EngineState(ready=False, text=text, retry_after_s=after_s))
        self._notifier.status(f"{self._phase.value}: {text}")

    def _fail(self, error: AscenddError) -> None:
        self._log.error("supervisor.failed", code=error.code, error=error.message, remedy=error.remedy)
        self._outcome = Outcome(exit_code_of(error), error)
        text = f"failed: {error.message}"
        self._tell_api(EngineState(ready=False, text=text, retry_after_s=status.MAX_RETRY_AFTER_S))
        self._notifier.status(f"failed: {error.code} {error.message}")
        self._stop_all()

    def _drain(self) -> None:
        api = self._children[Role.API]
        if api.state is not ChildState.READY:
            self._stop_all()
            return
        self._phase = Phase.DRAINING
        limit_s = self._config.recovery.drain_timeout_s
        self._notifier.stopping()
        self._notifier.status("draining")
        self._notifier.extend_timeout(limit_s + self._timing.extend_s)
        self._cancel_starts()
        api.drain(time.monotonic())
        self._table.send(Role.API, msg.Drain(limit_s))
        self._tell_api(EngineState(ready=False, text="draining", retry_after_s=status.DEFAULT_RETRY_AFTER_S))
        self._later(limit_s + self._timing.drain_margin_s, ev.DrainOver())

    def _stop_all(self) -> None:
        if self._phase in (Phase.STOPPING, Phase.STOPPED):
            return
        self._phase = Phase.STOPPING
        self._log.info("supervisor.stopping", exit_status=self._outcome.exit_code)
        self._notifier.stopping()
        self._cancel_starts()
        self._stop_next()

    def _stop_next(self) -> None:
        """Tell the next living child of the order to leave; the end of each leads here again."""
        if self._phase is not Phase.STOPPING:
            return
        now_s = time.monotonic()
        for role in _STOP_ORDER:
            child, process = self._children.get(role), self._table.get(role)
            if child is None or process is None:
                continue
            if child.state is not ChildState.STOPPING:
                is_loading = child.state in (ChildState.STARTING, ChildState.LOADING)
                child.stop(now_s)
                process.send(msg.Shutdown())
                grace_s = self._timing.loading_stop_grace_s if is_loading else self._timing.stop_grace_s
                self._later(grace_s, ev.KillDue(role, process.run))
            return
        self._phase = Phase.STOPPED

    def _cancel_starts(self) -> None:
        for child in self._children.values():
            if child.state is ChildState.BACKOFF:
                child.cancel(time.monotonic())

    def _tell_api(self, state: EngineState) -> None:
        self._engine_state = state
        if Role.API in self._children and self._children[Role.API].configured:
            self._table.send(Role.API, state)

    def _beat(self) -> None:
        """Feed the watchdog, unless the health monitor has not judged lately."""
        if self._watchdog_s is None:
            return
        if self._monitor.is_fresh(time.monotonic(), 5 * self._timing.tick_s):
            self._notifier.watchdog()
        asyncio.get_running_loop().call_later(self._watchdog_s / 2, self._beat)

    def _later(self, delay_s: float, event: ev.Event) -> None:
        asyncio.get_running_loop().call_later(delay_s, self._events.put_nowait, event)
