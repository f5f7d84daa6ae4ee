"""Operations: what people order of a running instance over the control socket or by SIGHUP, and what they are told."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ascendd import __version__
from ascendd.config.reload import plan_reload
from ascendd.config.schema import InstanceConfig
from ascendd.errors import AscenddError, UsageError
from ascendd.host.proc import own_usage, usage
from ascendd.ipc import messages as msg
from ascendd.ipc.messages import Role
from ascendd.ipc.rank_row import RankRow
from ascendd.supervisor import event as ev
from ascendd.supervisor.child import ChildState
from ascendd.supervisor.cost import Costs
from ascendd.supervisor.drills import start_drill
from ascendd.supervisor.inputs import check_inputs
from ascendd.supervisor.phase import RUNNING, Phase
from ascendd.supervisor.readiness import Readiness
from ascendd.supervisor.runtime import Runtime
from ascendd.supervisor.tuning import tuning_report
from ascendd.telemetry import log as telemetry_log

_LEVELS = ("debug", "info", "warning", "error")
_RESTARTABLE = {role.value: role for role in Role}


class Operations:
    """
    Answers control requests. Called from the event loop only.

    `load` reads the instance file anew; None where the instance has none (`ascendd serve`), so that only keys and log
    files are taken up. `doctor` is what the checks before the start said.
    """

    def __init__(  # noqa: PLR0917 - each is a part of the instance that answers
        self,
        runtime: Runtime,
        readiness: Readiness,
        instance: str,
        load: Callable[[], InstanceConfig] | None,
        doctor: Mapping[str, Any] | None,
        costs: Costs,
    ) -> None:
        self._run = runtime
        self._readiness = readiness
        self._costs = costs
        self._instance = instance
        self._load = load
        self._doctor = dict(doctor or {"verdict": "unknown"})
        self._last_reload: dict[str, Any] | None = None

    def answer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Do what `request` asks. Raises UsageError for what nobody knows or what cannot be done now."""
        match request.get("verb"):
            case "status":
                return self.status()
            case "drain":
                return self.hold(held=True)
            case "resume":
                return self.hold(held=False)
            case "restart":
                return self.restart(str(request.get("role", Role.ENGINE.value)))
            case "log-level":
                return self.set_level(str(request.get("level", "")))
            case "reload":
                return self.reload()
            case "tune":
                return {"instance": self._instance, **tuning_report(self._run)}
            case "cost":
                return {"instance": self._instance, **self._costs.report()}
            case "drill":
                return start_drill(self._run, str(request.get("kind", "")), _number(request.get("seconds", 20.0)))
        raise UsageError(
            f"the verb {str(request.get('verb'))[:40]!r} is not known",
            remedy="Use status, drain, resume, restart, log-level, reload, tune, cost or drill.",
        )

    def status(self) -> dict[str, Any]:
        """Return everything that `ascendd status` shows."""
        run = self._run
        now_s = time.monotonic()
        processes = [{"role": "supervisor", "state": "ready", "pid": os.getpid(), **_memory(os.getpid(), own_usage)}]
        for role, child in run.children.items():
            process = run.table.get(role)
            row: dict[str, Any] = {
                "role": role.value,
                "state": child.state.value,
                "since_s": round(now_s - child.since_s, 1) if child.since_s else None,
                "num_starts": child.num_starts,
                "load_s": None if child.load_s is None else round(child.load_s, 2),
                "pid": None if process is None else process.pid,
            }
            if process is not None:
                row |= _memory(process.pid, usage if role is Role.ENGINE else own_usage)
            if role is Role.ENGINE:
                row |= {"step": child.heartbeat.step_seq, "step_inflight_s": round(child.heartbeat.inflight_s, 3)}
            processes.append(row)
            if role is Role.ENGINE and process is not None:
                processes += [rank_facts(rank) for rank in child.heartbeat.ranks]
        return {
            "instance": self._instance,
            "version": __version__,
            "model": run.config.model.name,
            "address": run.address,
            "phase": run.phase.value,
            "held": run.held,
            "text": run.engine_state.text,
            "degraded": run.degradations.text,
            "uptime_s": round(now_s - run.started_at_s, 1),
            "processes": processes,
            "load": run.board.load(),
            "last_incident": run.last_incident,
            "engine": run.engine_facts,
            "ranks": _ranks(run),
            "devices": run.devices(),
            "checks": run.board.checks,
            "doctor": self._doctor,
            "log_level": run.config.log.level,
            "last_reload": self._last_reload,
        }

    def hold(self, *, held: bool) -> dict[str, Any]:
        """Take no new requests, or take them again; what runs is finished."""
        run = self._run
        self._check_running()
        if run.held != held:
            run.held = held
            run.log.warning("supervisor.held" if held else "supervisor.resumed")
            run.table.send(Role.API, msg.Hold(held))
            if run.phase is Phase.SERVING:
                self._readiness.tell_serving()
        return {"held": held, "load": run.board.load()}

    def restart(self, name: str) -> dict[str, Any]:
        """Have one process leave and be started again at once; that counts as no failure."""
        run = self._run
        self._check_running()
        role = _RESTARTABLE.get(name)
        process = None if role is None else run.table.get(role)
        if role is None or role not in run.children:
            names = ", ".join(known.value for known in run.children)
            raise UsageError(f"this instance has no process {name[:40]!r}", remedy=f"Use one of {names}.")
        if process is None or run.children[role].state is not ChildState.READY:
            state = run.children[role].state.value
            raise UsageError(f"{name} is {state}; only a process that is ready is restarted", remedy="Wait for it.")
        process.restart_asked = True
        run.log.warning("supervisor.restart_asked", child=name, pid=process.pid)
        process.send(msg.Shutdown())
        run.later(run.timing.stop_grace_s, ev.KillDue(role, process.run))
        return {"role": name, "pid": process.pid}

    def set_level(self, level: str) -> dict[str, Any]:
        """Change the level of all processes until the next start or reload of the instance."""
        run = self._run
        if level not in _LEVELS:
            raise UsageError(f"{level[:40]!r} is not a log level", remedy=f"Use one of {', '.join(_LEVELS)}.")
        section = msgspec.structs.replace(run.config.log, level=level)
        self._apply(msgspec.structs.replace(run.config, log=section))
        run.log.info("supervisor.log_level", level=level)
        return {"level": level}

    def reload(self) -> dict[str, Any]:
        """
        Take up what may change of the instance file, read keys anew and reopen log files.

        What cannot be read changes nothing and is told; systemd hears RELOADING and READY either way.
        """
        run = self._run
        run.notifier.reloading(is_ready=run.was_ready)
        if (writer := run.table.get(Role.LOGWRITER)) is not None:
            writer.signal(signal.SIGHUP)
        try:
            plan = plan_reload(run.config, run.config if self._load is None else self._load())
            check_inputs(plan.config)
        except AscenddError as error:
            facts = {"code": error.code, "error": error.message, "remedy": error.remedy}
            run.log.error("supervisor.reload_failed", **facts)  # noqa: TRY400 - the message says all
            self._last_reload = {"code": error.code, "error": error.message}
            raise
        else:
            self._apply(plan.config)
            self._last_reload = {"applied": list(plan.applied), "needs_restart": list(plan.needs_restart)}
            run.log.info("supervisor.reloaded", **self._last_reload)
            if plan.needs_restart:
                run.log.warning("supervisor.needs_restart", keys=list(plan.needs_restart))
            return dict(self._last_reload)
        finally:
            if run.was_ready:
                run.notifier.ready()

    def _apply(self, config: InstanceConfig) -> None:
        run = self._run
        run.reconfigure(config)
        telemetry_log.set_level(config.log.level)
        for role in (Role.API, Role.ENGINE):
            if run.children[role].configured:
                run.table.send(role, msg.Reconfigure(run.config_json))

    def _check_running(self) -> None:
        if self._run.phase not in RUNNING:
            raise UsageError(f"the instance is {self._run.phase.value}", remedy="Start it again with systemctl.")


def _ranks(run: Runtime) -> list[dict[str, Any]]:
    """Return where each rank computes: its stage, its slice, and the logical id of its device."""
    parallel = run.config.parallel
    tp_size, pp_size = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    if run.placement is not None:
        tp_size, pp_size = run.placement.tp_size, run.placement.pp_size
    devices = run.devices()
    world = tp_size * pp_size
    kind = run.engine_facts.get("device", run.config.engine.device)
    return [
        {
            "rank": rank,
            "stage": rank // tp_size,
            "slice": rank % tp_size,
            "device": kind if kind == "cpu" else f"{kind} {devices[rank] if rank < len(devices) else rank}",
            "state": run.children[Role.ENGINE].state.value,
        }
        for rank in range(world)
    ]


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UsageError(f"{str(value)[:40]!r} is not a number of seconds", remedy="Give a number, such as 20.")
    return float(value)


def rank_facts(rank: RankRow) -> dict[str, Any]:
    """Return a rank as `ascendd status` shows it; what ended it is told by the engine, not by this row."""
    return {
        "role": f"rank {rank.rank}",
        "state": "ready",
        "doing": f"waits in {rank.collective}" if rank.collective else "computes" if rank.inflight_s else "idle",
        "pid": rank.pid,
        "step": rank.step_seq,
        "step_inflight_s": rank.inflight_s,
        "silent_s": rank.silent_s,
        **_memory(rank.pid, own_usage),
    }


def _memory(pid: int, read: Callable[[int], Any]) -> dict[str, Any]:
    reading = read(pid)
    return {} if reading is None else {"rss_bytes": reading.rss_bytes}
