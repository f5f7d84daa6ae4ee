"""Runtime: what the parts of a supervisor share: children, their processes, the phase, ways to tell people."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from structlog.stdlib import BoundLogger

from ascendd.config.schema import InstanceConfig
from ascendd.host.systemd import Notifier
from ascendd.ipc.messages import EngineState, Fault, Role
from ascendd.supervisor.board import StatsBoard
from ascendd.supervisor.child import Child
from ascendd.supervisor.degradation import Degradations
from ascendd.supervisor.devices import npu_devices
from ascendd.supervisor.event import Event
from ascendd.supervisor.incident import IncidentBook
from ascendd.supervisor.phase import Outcome, Phase, Timing
from ascendd.supervisor.process_table import ProcessTable
from ascendd.supervisor.quarantine import Placement
from ascendd.telemetry import log as telemetry_log

# Engine and API serve together: each end of their data link is worth nothing without the other.
PEERS = {Role.ENGINE: Role.API, Role.API: Role.ENGINE}


@dataclass
class Runtime:
    """The state of one running instance. Owned by the event loop; nothing here decides anything."""

    config: InstanceConfig
    address: str
    timing: Timing
    notifier: Notifier
    events: asyncio.Queue[Event]
    table: ProcessTable
    board: StatsBoard
    children: Mapping[Role, Child]
    log: BoundLogger = field(default_factory=lambda: telemetry_log.get_logger("supervisor"))
    phase: Phase = Phase.STARTING
    was_ready: bool = False
    outcome: Outcome = field(default_factory=lambda: Outcome(0))
    engine_state: EngineState = field(default_factory=lambda: EngineState(ready=False, text="starting"))
    started_at_s: float = field(default_factory=time.monotonic)
    started_unix_s: int = field(default_factory=lambda: int(time.time()))
    config_json: bytes = b""
    degradations: Degradations = field(default_factory=Degradations)
    # Why no new work is taken for want of host memory; empty while it is.
    pressure: str = ""
    # What went wrong last and is not over, as every log line of that time has it; empty while all is well.
    episode: str = ""
    # Whether the operator wants no new requests taken.
    held: bool = False
    # The last unasked end of a process, for `ascendd status`.
    last_incident: dict[str, Any] | None = None
    # What the engine told of itself when it was last ready.
    engine_facts: dict[str, Any] = field(default_factory=dict)
    # What every thread did when a process hung, by role, until the bundle of that incident has it.
    stacks: dict[str, str] = field(default_factory=dict)
    num_cache_blocks: int | None = None
    # Where the instance goes on since a chip was left out.
    placement: Placement | None = None
    incidents: IncidentBook | None = None
    # Whether systemd holds the listener, so that clients came before the first start was over.
    activated: bool = False
    # Where /metrics listens by now, for the API's own /metrics; the file may say port 0.
    metrics_address: tuple[str, int] | None = None

    def __post_init__(self) -> None:
        self.reconfigure(self.config)
        self.engine_state = msgspec.structs.replace(self.engine_state, may_wait=self.activated)

    def reconfigure(self, config: InstanceConfig) -> None:
        """Go on with `config`; a cache that was made smaller stays so. To tell the children is for the caller."""
        self.config = config
        engine = config.engine
        if self.num_cache_blocks is not None:
            engine = msgspec.structs.replace(
                engine, max_num_blocks=self.num_cache_blocks, kv_cache_memory=None, gpu_memory_utilization=None
            )
        parallel = config.parallel
        if self.placement is not None:
            parallel = msgspec.structs.replace(
                parallel,
                tensor_parallel_size=self.placement.tp_size,
                pipeline_parallel_size=self.placement.pp_size,
                devices=list(self.placement.devices),
            )
        metrics = config.metrics
        if self.metrics_address is not None:
            metrics = msgspec.structs.replace(metrics, host=self.metrics_address[0], port=self.metrics_address[1])
        self.config_json = msgspec.json.encode(
            msgspec.structs.replace(config, engine=engine, parallel=parallel, metrics=metrics)
        )

    def open_episode(self, number: int) -> None:
        """Begin episode `number` of this supervisor; its id is unlike that of any other start."""
        self.episode = f"{self.started_unix_s:x}-{number}"
        telemetry_log.set_episode(self.episode)

    def close_episode(self) -> None:
        """Note that all is well again."""
        self.episode = ""
        telemetry_log.set_episode("")

    def pin_incident(self, incident: dict[str, Any], fault: Fault | None) -> None:
        """Remember `incident` as the last one and have its bundle written beside the loop."""
        self.last_incident = incident
        self.board.count_incident(str(incident["child"]), str(incident["cause"]))
        if self.incidents is None:
            return
        facts = None if fault is None else msgspec.structs.asdict(fault)
        curve = list(self.board.memory_curve)
        writing = asyncio.get_running_loop().run_in_executor(
            None, self.incidents.pin, incident, facts, curve, self.config, self.stacks
        )
        self.stacks = {}
        writing.add_done_callback(self._pinned)

    def _pinned(self, writing: asyncio.Future[Path | None]) -> None:
        if writing.cancelled():
            return
        if (error := writing.exception()) is not None:
            self.board.take_bundles(None)
            self.log.error("supervisor.incident_not_pinned", error=f"{type(error).__name__}: {error}")
        elif (path := writing.result()) is not None:
            assert self.incidents is not None
            self.board.take_bundles(self.incidents.num_bytes())
            self.log.info("supervisor.incident_pinned", path=str(path))

    def extend_start(self, seconds: float) -> None:
        """Have systemd wait `seconds` more for the start, because something went forward."""
        if not self.was_ready:
            self.notifier.extend_timeout(seconds + self.timing.extend_s)

    def limit_cache(self, num_blocks: int) -> None:
        """Configure every engine from now on with a KV cache of `num_blocks`, whatever the file says of its size."""
        self.num_cache_blocks = num_blocks
        self.reconfigure(self.config)

    def place(self, placement: Placement) -> None:
        """Configure every engine from now on for the chips of `placement`."""
        self.placement = placement
        self.reconfigure(self.config)
        self.table.show_devices(Role.ENGINE, placement.devices)

    def devices(self) -> list[int]:
        """Return the logical numbers of the chips that the engine has or will have, by rank."""
        if self.placement is not None:
            return list(self.placement.devices)
        # Ascending, as the vendor's runtime numbers them.
        return sorted(npu_devices(self.config, os.environ))

    def later(self, delay_s: float, event: Event) -> None:
        """Post `event` after `delay_s`."""
        asyncio.get_running_loop().call_later(delay_s, self.events.put_nowait, event)

    def tell_api(self, state: EngineState) -> None:
        """Have the API answer with `state` from now on, its successors included."""
        state = msgspec.structs.replace(
            state,
            episode=self.episode,
            degraded=self.degradations.text,
            pressure=self.pressure,
            may_wait=self.activated,
        )
        self.engine_state = state
        if Role.API in self.children and self.children[Role.API].configured:
            self.table.send(Role.API, state)
