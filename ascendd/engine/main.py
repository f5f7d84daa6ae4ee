"""The engine process: load, report ready, then step while there is work and sleep while there is none."""

from __future__ import annotations

import faulthandler
import gc
import select
import sys
from collections.abc import Sequence
from pathlib import Path

from ascendd.config.model_facts import ModelFacts
from ascendd.config.resolve import EngineConfig
from ascendd.engine.control_link import ControlLink
from ascendd.engine.core import EngineCore
from ascendd.engine.drill_faults import DrillFaults
from ascendd.engine.grammar_desk import GrammarDesk
from ascendd.engine.loading import load
from ascendd.engine.progress import StepProgress
from ascendd.errors import AscenddError, DeviceOutOfMemory, PeerClosed
from ascendd.grammar.matcher import grammar_factory
from ascendd.ipc.channel import BlockingChannel
from ascendd.ipc.child import ChildArguments, receive_config, run_role
from ascendd.ipc.messages import (
    AbortSequences,
    AdapterResult,
    AddSequence,
    ControlMessage,
    DataMessage,
    EngineHello,
    Fault,
    LoadAdapter,
    Probe,
    ProbeDone,
    Progress,
    Ready,
    Role,
    SequenceFailed,
    UnloadAdapter,
)
from ascendd.telemetry import log

# Load progress goes out at most this often; each report extends systemd's start timeout.
_PROGRESS_EVERY_S = 0.25
_POLL_IDLE_MS = 1000
_MAX_NAMED = 64


def main(argv: Sequence[str]) -> int:
    """Run the engine role and return its exit status."""
    faulthandler.enable()  # SIGABRT from the supervisor, on a hang, writes every thread's stack
    return run_role(Role.ENGINE, argv, _body)


def _body(_arguments: ChildArguments, channel: BlockingChannel[ControlMessage]) -> int:
    config, episode = receive_config(channel, Role.ENGINE)
    name = config.model.name or Path(config.model.path).name
    log.configure(config.log, instance=name, role=Role.ENGINE.value)
    logger = log.get_logger("engine")
    progress = StepProgress()
    link = ControlLink(channel, progress)
    link.start()
    engine_config, facts, core = load(config, lambda phase, fraction: channel.send(Progress(phase, fraction)))
    link.metrics = core.metrics
    link.ranks = core.executor.rank_rows
    gc.collect()
    gc.freeze()  # the model's objects live as long as the process; no collection need look at them again
    logger.info(
        "engine.loaded",
        episode=episode,
        dtype_origin=engine_config.origins["dtype"],
        activation_bytes=engine_config.plan.reserve_bytes,
        kv_bytes=engine_config.plan.kv_bytes,
        **_ready_facts(engine_config),
        **core.report.facts,
    )
    channel.send(Ready({**_ready_facts(engine_config), **core.report.facts}))
    try:
        drill = DrillFaults(core.executor) if config.recovery.drills else None
        link.on_drill = None if drill is None else drill.take
        EngineLoop(core, engine_config, facts, link, progress, drill=drill).run()
    finally:
        core.executor.close()
    return 0


def _ready_facts(config: EngineConfig) -> dict[str, str | int]:
    return {
        "device": config.device,
        "dtype": config.dtype,
        "num_blocks": config.num_blocks,
        "block_size": config.block_size,
        "max_model_len": config.max_model_len,
        "kv_bytes_per_token": config.plan.bytes_per_token,
        "weights_bytes": config.plan.weights_bytes,
        "num_threads": config.num_threads,
        "tensor_parallel_size": config.tensor_parallel_size,
        "pipeline_parallel_size": config.pipeline_parallel_size,
    }


class EngineLoop:
    """Drains the data link between steps; waits on it while there is nothing to do."""

    def __init__(
        self,
        core: EngineCore,
        config: EngineConfig,
        facts: ModelFacts,
        link: ControlLink,
        progress: StepProgress,
        *,
        drill: DrillFaults | None = None,
    ) -> None:
        self._drill = drill
        self._core = core
        self._config = config
        self._facts = facts
        self._link = link
        self._progress = progress
        core.on_scheduled = progress.scheduled
        self._data: BlockingChannel[DataMessage] | None = None
        self._logger = log.get_logger("engine")
        factory = grammar_factory(Path(config.model_path), facts.vocab_size, facts.eos_token_ids)
        self._grammar_desk = GrammarDesk(factory, link.wake)

    def run(self) -> None:
        """Step until the supervisor says to end."""
        while not self._link.ending.is_set():
            if not self._core.has_work:
                self._core.check_integrity()
                self._wait()
            self._take_link()
            self._core.executor.check()
            while not self._link.limits.empty():
                limits = self._link.limits.get()
                self._core.set_limits(limits.max_num_seqs, limits.prefill_tokens)
            self._receive()
            self._take_grammars()
            if self._core.has_work:
                self._step()

    def _wait(self) -> None:
        poller = select.poll()
        poller.register(self._link.wake_fd, select.POLLIN)
        if self._data is not None:
            poller.register(self._data.fileno(), select.POLLIN)
        for fd in self._core.executor.filenos():
            poller.register(fd, select.POLLIN)
        poller.poll(_POLL_IDLE_MS)
        self._link.clear_wake()

    def _take_link(self) -> None:
        while not self._link.links.empty():
            self._drop_link("replaced")
            self._data = BlockingChannel(self._link.links.get(), DataMessage)
            self._send(self._hello())

    def _hello(self) -> EngineHello:
        return EngineHello(
            model_name=self._config.model_name,
            max_model_len=self._config.max_model_len,
            vocab_size=self._facts.vocab_size,
            eos_token_ids=self._facts.eos_token_ids,
            num_blocks=self._config.num_blocks,
            block_size=self._config.block_size,
            max_num_seqs=self._config.max_num_seqs,
            adapters=self._core.adapter_names,
        )

    def _drop_link(self, why: str) -> None:
        """Close the data link; whoever asked for the open sequences is gone, weights and prefix cache stay."""
        if self._data is None:
            return
        self._data.close()
        self._data = None
        self._logger.info("engine.data_link_closed", why=why, num_aborted=self._core.abort_all())
        self._grammar_desk.forget_all()

    def _receive(self) -> None:
        if self._data is None:
            return
        try:
            for message in self._data.drain():
                # Counted as a step: an adapter on a disk that does not answer is a hang like any other.
                self._progress.begin()
                if isinstance(message, AddSequence):
                    if not self._grammar_desk.put(message):
                        self._add(message)
                elif isinstance(message, AbortSequences):
                    self._grammar_desk.forget(message.seq_ids)
                    self._core.abort(message.seq_ids)
                elif isinstance(message, (LoadAdapter, UnloadAdapter)):
                    self._send(self._change_adapters(message))
                elif isinstance(message, Probe):
                    self._send(self._probe(message))
                self._progress.end(self._core.num_running, self._core.num_waiting)
        except PeerClosed:
            self._drop_link("peer closed")

    def _probe(self, message: Probe) -> ProbeDone:
        try:
            self._core.probe()
        except DeviceOutOfMemory as error:
            # The steps shrink when this happens to them; a probe only tells.
            return ProbeDone(message.ticket, Fault.from_error(error))
        return ProbeDone(message.ticket)

    def _add(self, message: AddSequence) -> None:
        failed = self._core.add(message)
        if failed is not None:
            self._send(failed)

    def _take_grammars(self) -> None:
        """Take in the sequences whose grammar was compiled meanwhile."""
        for message, failed in self._grammar_desk.take():
            if failed is None:
                self._add(message)
            else:
                self._send(failed)

    def _change_adapters(self, message: LoadAdapter | UnloadAdapter) -> AdapterResult:
        """Load or unload between two steps; what is wrong with an adapter is told, and harms nobody."""
        fault = None
        try:
            if isinstance(message, LoadAdapter):
                self._core.load_adapter(message.name, message.path)
            else:
                self._core.unload_adapter(message.name)
        except AscenddError as error:
            self._logger.warning("engine.adapter_refused", adapter=message.name, code=error.code, reason=error.message)
            fault = Fault.from_error(error)
        return AdapterResult(message.ticket, self._core.adapter_names, fault)

    def _step(self) -> None:
        for failed in self._core.expire():
            self._send(failed)
        self._progress.begin()
        if self._drill is not None:
            self._drill.fire()
        try:
            output = self._core.step()
        except Exception as error:
            # Which requests a process ended over: the same one in several incidents is the one to look at.
            self._logger.error(  # noqa: TRY400 - the traceback is told where the process ends
                "engine.step_failed",
                error=f"{type(error).__name__}: {error}"[:500],
                num_tokens=self._core.num_step_tokens,
                request_ids=self._core.step_request_ids[:_MAX_NAMED],
            )
            raise
        self._progress.end(self._core.num_running, self._core.num_waiting)
        if output is not None:
            self._send(output)
        for failed in self._core.take_failed():
            self._send(failed)

    def _send(self, message: EngineHello | SequenceFailed | object) -> None:
        if self._data is None:
            return
        try:
            self._data.send(message)  # type: ignore[arg-type]
        except PeerClosed:
            self._drop_link("peer closed")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
