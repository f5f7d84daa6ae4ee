"""Supervisor: the loop of one instance. Events in, effects out; the pure modules beside it decide what to do."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from ascendd.config.quantity import parse_bytes
from ascendd.config.schema import InstanceConfig
from ascendd.errors import AscenddError, ProtocolMismatch
from ascendd.host.files import HostFiles
from ascendd.host.systemd import Notifier
from ascendd.ipc import messages as msg
from ascendd.ipc.messages import Fault, Role
from ascendd.preflight.live import run_live
from ascendd.supervisor import event as ev
from ascendd.supervisor import status
from ascendd.supervisor.board import StatsBoard
from ascendd.supervisor.child import Child, ChildState
from ascendd.supervisor.chip_repair import ChipRepair
from ascendd.supervisor.control import Control, ControlSocket
from ascendd.supervisor.cost import Costs
from ascendd.supervisor.departure import Departure
from ascendd.supervisor.device_probe import DeviceProbe
from ascendd.supervisor.health import Deadlines, HealthMonitor, deadlines_of
from ascendd.supervisor.incident import IncidentBook
from ascendd.supervisor.live_checks import LiveChecks, RunLive
from ascendd.supervisor.operations import Operations
from ascendd.supervisor.phase import Outcome, Phase, Timing
from ascendd.supervisor.process import ChildProcess
from ascendd.supervisor.process_table import ProcessTable
from ascendd.supervisor.readiness import Readiness
from ascendd.supervisor.recovery import RecoveryPolicy
from ascendd.supervisor.release import ReleaseProof
from ascendd.supervisor.respawn import Devices, Probe, Repair
from ascendd.supervisor.revival import Revival
from ascendd.supervisor.runtime import PEERS, Runtime
from ascendd.supervisor.sockets import address_of
from ascendd.supervisor.spec import ChildSpec
from ascendd.supervisor.status_feed import StatusFeed
from ascendd.supervisor.watch import Watch
from ascendd.telemetry.log_budget import LogBudget, vendor_log_folders

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
        probe: Probe | None = None,
        repair: Repair | None = None,
        control: Control | None = None,
        live_checks: RunLive | None = None,
        files: HostFiles | None = None,
        activated: bool = False,
    ) -> None:
        events: asyncio.Queue[ev.Event] = asyncio.Queue()
        self._run = Runtime(
            config=config,
            address=("" if config.listen.tls is None else "https://") + address_of(listeners["api"]),
            timing=timing or Timing(checks_s=config.health.checks_interval_s),
            notifier=notifier or Notifier(),
            events=events,
            table=ProcessTable(specs, listeners, log_reader, events.put_nowait),
            board=StatsBoard(instance, config.model.name or ""),
            children={role: Child(role) for role in specs},
            activated=activated,
            metrics_address=listeners["metrics"].getsockname()[:2] if "metrics" in listeners else None,
        )
        own_probe = DeviceProbe.of(config, device_kind)
        self._readiness = Readiness(self._run)
        self._departure = Departure(self._run)
        self._revival = Revival(
            self._run,
            RecoveryPolicy.of(config, specs, device_kind),
            self._readiness,
            self._departure,
            Devices(
                ReleaseProof(device_kind),
                probe or own_probe,
                repair or ChipRepair.of(config, instance, own_probe.devices, files),
            ),
        )
        monitor = HealthMonitor(deadlines or deadlines_of(config))
        control = control or Control()
        if control.incidents is not None:
            self._run.incidents = IncidentBook(control.incidents, instance, os.environ)
            self._run.board.take_bundles(self._run.incidents.num_bytes())
        self._costs = Costs(self._run, files or HostFiles())
        self._operations = Operations(self._run, self._readiness, instance, control.load, control.doctor, self._costs)
        self._feed = StatusFeed(self._run, instance, self._operations.status)
        self._control = ControlSocket(control.path, self._operations.answer) if control.path is not None else None
        file = None if config.log.file is None else Path(config.log.file)
        budget = LogBudget(parse_bytes(config.log.budget), file, vendor_log_folders(os.environ, instance))
        self._watch = Watch(self._run, monitor, self._readiness, watchdog_s, budget, files=files)
        self._live = LiveChecks(self._run, live_checks or functools.partial(run_live, config, instance))

    async def run(self) -> Outcome:
        """Start everything and return when all children are gone. Raises EngineFault where no process can be made."""
        run = self._run
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, run.events.put_nowait, ev.SignalReceived(number))
        loop.add_signal_handler(signal.SIGCHLD, run.table.reap)
        run.notifier.status("starting")
        try:
            await self._open_control()
            for role in run.children:
                self._revival.start(role)
            run.events.put_nowait(ev.Tick())
            self._watch.beat()
            while run.phase is not Phase.STOPPED:
                self._handle(await run.events.get())
        finally:
            if self._control is not None:
                self._control.close()
            self._feed.close()
            run.table.kill_all()
            for number in (*_SIGNALS, signal.SIGCHLD):
                loop.remove_signal_handler(number)
        return run.outcome

    async def _open_control(self) -> None:
        """Listen for operators; without that the instance serves all the same, and says so."""
        try:
            if self._control is not None:
                await self._control.open()
        except AscenddError as error:
            self._run.log.warning("supervisor.no_control", code=error.code, error=error.message)

    def _handle(self, event: ev.Event) -> None:
        run = self._run
        match event:
            case ev.MessageReceived(role, number, message):
                if (process := run.table.get(role, number)) is not None:
                    self._on_message(run.children[role], process, message)
            case ev.ChildEnded(role, number, end_status):
                if (process := run.table.get(role, number)) is not None:
                    self._revival.on_end(run.children[role], process, end_status)
            case ev.StartDue(role, num_starts):
                self._revival.on_start_due(role, num_starts)
            case ev.DevicesRead(num_starts, reading):
                self._revival.on_devices_read(num_starts, reading)
            case ev.ChipsReset(num_starts, outcome):
                self._revival.on_chips_reset(num_starts, outcome)
            case ev.SelfTestOverdue(episode):
                self._readiness.on_overdue(episode)
            case ev.SelfTestFailure(number, text):
                self._readiness.on_failure(number, text)
            case ev.KillDue(role, number):
                if (process := run.table.get(role, number)) is not None and process.status is None:
                    run.log.warning("supervisor.child_killed", child=role.value, pid=process.pid)
                    process.kill_group()
            case ev.DrainOver():
                self._departure.stop_all()
            case ev.SignalReceived(number):
                self._on_signal(signal.Signals(number))
            case ev.ChecksDone(results, problem):
                self._live.on_done(results, problem)
            case ev.StacksDue():
                self._watch.stacks.on_due()
            case ev.Tick():
                self._watch.on_tick()
                self._costs.on_tick(time.monotonic())
                self._live.on_tick(time.monotonic())
                self._feed.on_tick(time.monotonic())

    def _on_message(self, child: Child, process: ChildProcess, message: object) -> None:
        child.heard_at_s = time.monotonic()
        match message:
            case msg.Hello(_, _, version):
                self._on_hello(child, process, version)
            case msg.Progress(phase, fraction):
                if child.progressed(phase, fraction, time.monotonic()):
                    self._readiness.on_progress(child, status.progress_text(phase, fraction), fraction)
            case msg.Ready(facts) if child.state is ChildState.LOADING:
                child.ready(time.monotonic())
                load_s = round(child.load_s or 0.0, 3)
                self._run.log.info("supervisor.child_ready", child=child.role.value, load_s=load_s, **facts)
                if child.role is Role.ENGINE:
                    self._run.engine_facts = dict(facts)
                    self._revival.on_engine_ready(facts)
                if child.role in PEERS:
                    self._readiness.prove()
            case msg.Heartbeat():
                child.heartbeat = message
            case msg.Stats():
                self._run.board.take(child.role, message)
            case msg.ForeignMetrics(text):
                self._run.board.take_foreign(child.role, text)
            case msg.WatchStatus(wanted):
                self._feed.watch(wanted=wanted)
            case msg.SelfTestDone():
                self._readiness.on_self_test(message)
            case msg.Drained(num_aborted):
                self._departure.on_drained(num_aborted)
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
        process.send(msg.Configure(self._run.config_json, process.run, self._run.episode))
        if child.role is Role.API:
            self._feed.watch(wanted=False)
            process.send(self._run.engine_state)
            if self._run.held:
                process.send(msg.Hold(held=True))
        self._readiness.attach(child.role)

    def _on_signal(self, number: signal.Signals) -> None:
        self._run.log.info("supervisor.signal", signal=number.name)
        if number is not signal.SIGHUP:
            self._departure.ask()
        else:
            with contextlib.suppress(AscenddError):  # logged, and told by `ascendd status`
                self._operations.reload()
