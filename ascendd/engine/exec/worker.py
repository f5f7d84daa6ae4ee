"""The process of one rank: it waits on its link, never in a collective, and computes what it is told to."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ascendd.config.model_facts import ModelFacts, read_model_facts
from ascendd.config.rank_place import RankPlace
from ascendd.config.resolve import EngineConfig
from ascendd.config.schema import InstanceConfig
from ascendd.device.base import Device
from ascendd.engine.exec.step_delta import SequenceMirror
from ascendd.engine.parallel.rank_progress import RankProgress
from ascendd.errors import AscenddError, PeerClosed, ProtocolMismatch
from ascendd.ipc import rank_messages as msg
from ascendd.ipc.channel import BlockingChannel
from ascendd.ipc.child import die_with_parent
from ascendd.ipc.installation import installation_fault
from ascendd.ipc.messages import Fault
from ascendd.ipc.stack_pipe import answer_stack_requests
from ascendd.telemetry import log

HEARTBEAT_S = 1.0
_START_TIMEOUT_S = 60.0
_PROGRESS_EVERY_S = 0.25


def main(argv: Sequence[str]) -> int:
    """Run one rank and return its exit status."""
    die_with_parent()
    parser = argparse.ArgumentParser(prog="ascendd _worker", description="Started by the engine, not by hand.")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--stack-fd", type=int, required=True)
    args = parser.parse_args(argv)
    faulthandler.enable()
    os.set_inheritable(args.control_fd, False)
    answer_stack_requests(args.stack_fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel: BlockingChannel[msg.ToRank] = BlockingChannel(socket.socket(fileno=args.control_fd), msg.ToRank)
    status = _guarded(channel)
    # Without the usual way out: destructors of process groups wait for ranks that may be gone.
    sys.stderr.flush()
    os._exit(status)


def _guarded(channel: BlockingChannel[msg.ToRank]) -> int:
    try:
        Worker(channel).run()
    except PeerClosed:
        return 0
    except Exception as raised:  # the last frame before the exit status
        raised_s = time.monotonic()
        error = raised if isinstance(raised, AscenddError) else installation_fault(raised) or raised
        fault = Fault.from_error(error)
        sys.stderr.write(fault.traceback_text)
        with contextlib.suppress(PeerClosed):
            channel.send(msg.RankFault(fault, raised_s), timeout_s=5.0)
        return int(error.exit_code) if isinstance(error, AscenddError) else int(AscenddError.exit_code)
    return 0


class Worker:
    """One rank: its device, its group, its runner, and the engine's sequences as it knows them."""

    def __init__(self, channel: BlockingChannel[msg.ToRank]) -> None:
        self._channel = channel
        self._progress = RankProgress()
        self._mirror = SequenceMirror()
        start = channel.recv(_START_TIMEOUT_S)
        if not isinstance(start, msg.RankStart):
            raise ProtocolMismatch(f"expected RankStart first, got {type(start).__name__}")
        self._start = start
        self._config = msgspec.json.decode(start.config_json, type=InstanceConfig)
        parallel = self._config.parallel
        self._place = RankPlace.of(start.rank, parallel.tensor_parallel_size, parallel.pipeline_parallel_size)
        name = self._config.model.name or Path(self._config.model.path).name
        log.configure(self._config.log, instance=name, role="worker", rank=start.rank)

    def run(self) -> None:
        """Serve the link until the engine ends it. Raises PeerClosed when the engine is gone."""
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        from ascendd.device.detect import make_device

        with self._progress.work():
            device = make_device(self._config.engine.device, self._place.rank)
        self._channel.send(msg.RankHello(msgspec.to_builtins(device.facts)))
        message = self._channel.recv(None)
        if not isinstance(message, msg.RankLoad):
            raise ProtocolMismatch(f"expected RankLoad, got {type(message).__name__}")
        engine_config = msgspec.json.decode(message.engine_config_json, type=EngineConfig)
        with device.naming_faults():
            self._serve(engine_config, read_model_facts(Path(engine_config.model_path)), device)

    def _serve(self, config: EngineConfig, facts: ModelFacts, device: Device) -> None:
        import torch

        from ascendd.engine.parallel.rank_group import join_group
        from ascendd.engine.runner.model_runner import ModelRunner
        from ascendd.engine.runner.runner_report import tell_replaced

        torch.set_num_threads(config.num_threads)
        torch.set_num_interop_threads(1)
        started, before = time.monotonic(), device.used_bytes()
        self._channel.send(msg.RankLoading("meeting the other ranks", 0.0))
        self._progress.classify = device.classify_fault
        told_s = 0.0

        def report(fraction: float) -> None:
            nonlocal told_s
            if time.monotonic() - told_s >= _PROGRESS_EVERY_S or fraction >= 1.0:
                told_s = time.monotonic()
                self._channel.send(msg.RankLoading("loading", fraction))

        with self._progress.work():
            group = join_group(
                self._place,
                backend=device.collective_backend(),
                store_path=self._start.store_path,
                timeout_s=self._start.collective_timeout_s,
                progress=self._progress,
            )
            runner = ModelRunner(config, facts, device, report, group)
        grown = max(0, device.used_bytes() - before)
        tell_replaced(runner.kernel_verdicts)
        self._channel.send(msg.RankLoaded(round(time.monotonic() - started, 3), grown, runner.report.replaced_kernels))
        while True:
            message = self._channel.recv(None)
            match message:
                case msg.RankStep():
                    with self._progress.work(message.step_seq):
                        output = self._mirror.decode(message)
                        result = runner.execute(output)
                        self._mirror.computed(output)
                    if self._place.draws:
                        self._channel.send(
                            msg.RankStepDone(
                                message.step_seq,
                                result.token_ids,
                                result.logprobs,
                                result.prompt_logprobs,
                                runner.report.num_replays,
                            )
                        )
                case msg.RankProfile():
                    with self._progress.work():
                        peak = runner.profile()
                    self._channel.send(msg.RankProfiled(peak, device.memory_info().free_bytes))
                case msg.RankBlocks():
                    with self._progress.work():
                        runner.set_num_blocks(message.num_blocks)
                        runner.capture_graphs()
                    self._channel.send(msg.RankReady(runner.report.num_graph_buckets))
                case msg.RankLoadAdapter():
                    with self._progress.work():
                        self._channel.send(_load_adapter(runner, message))
                case msg.RankDropAdapter():
                    runner.drop_adapter(message.adapter_id)
                case msg.RankShutdown():
                    return
                case _:
                    raise ProtocolMismatch(f"{type(message).__name__} comes at the wrong time")

    def _beat(self) -> None:
        try:
            while True:
                self._channel.send(self._progress.heartbeat())
                time.sleep(HEARTBEAT_S)
        except PeerClosed:
            os._exit(0)  # the engine is gone, and the step's thread may wait for ranks that are gone, too


def _load_adapter(runner: object, message: msg.RankLoadAdapter) -> msg.RankAdapter:
    from ascendd.engine.runner.model_runner import ModelRunner

    assert isinstance(runner, ModelRunner)
    try:
        return msg.RankAdapter(message.adapter_id, runner.load_adapter(message.adapter_id, message.path))
    except AscenddError as error:
        return msg.RankAdapter(message.adapter_id, 0, Fault.from_error(error))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
