"""MultiProcessExecutor: one worker process a rank, steps as deltas, and the end of all as soon as one fails."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import TypeVar

import msgspec

from ascendd.config.plan import DeviceFacts
from ascendd.config.rank_place import RankPlace
from ascendd.config.schema import InstanceConfig
from ascendd.engine.exec.executor import Executor
from ascendd.engine.exec.group_fault import RankEnd, RankState, earliest_cause, hung_error
from ascendd.engine.exec.rank_process import COMMAND, RankProcess
from ascendd.engine.exec.step_delta import StepEncoder
from ascendd.engine.progress import StepProgress
from ascendd.engine.runner.runner_report import RunnerReport
from ascendd.engine.sched.output import ModelRunnerOutput, SchedulerOutput
from ascendd.errors import AscenddError, IpcError, PeerClosed
from ascendd.ipc import rank_messages as msg
from ascendd.ipc.rank_row import RankRow
from ascendd.ipc.step_deadline import PATIENCE, step_deadline_of
from ascendd.telemetry import log

# After the first end the others are heard out: the cause may be told later than its echoes.
_ECHO_GRACE_S = 0.5
_STACKS_S = 1.0
_STACKS_TICK_S = 0.05
_TICK_S = 0.25
_SHUTDOWN_S = 3.0
# A worker imports torch before it speaks; afterwards its heartbeats do not pause while it loads.
_START_S = 120.0
# Beyond the longest deadline: the engine judges first, since it sees all ranks. A collective that times out tells of
# the rank that waits, and the watchdogs of HCCL and NCCL end that one.
_COLLECTIVE_MARGIN_S = 30.0

M = TypeVar("M")


class MultiProcessExecutor(Executor):
    """
    The ranks of a tensor x pipeline grid.

    The engine is in no collective itself, so it notices at once when a rank's link ends, and judges every quarter of a
    second whether steps and heartbeats keep their deadline. Each failure ends all ranks and is raised with the earliest
    specific cause and its rank.
    """

    def __init__(
        self, config: InstanceConfig, *, num_threads: int = 1, vocab_size: int, command: tuple[str, ...] = COMMAND
    ) -> None:
        tp_size, pp_size = config.parallel.tensor_parallel_size, config.parallel.pipeline_parallel_size
        self.vocab_size = vocab_size
        self.report = RunnerReport()
        self.max_in_flight = pp_size
        self._deadline_s = config.health.step_deadline_s
        self._load_deadline_s = config.health.load_deadline_s
        self._log = log.get_logger("engine")
        self._encoder = StepEncoder()
        self._submitted: deque[int] = deque()
        # Steps under way, oldest first, with their tokens; and those that are done and not fetched yet.
        self._running: dict[int, int] = {}
        self._done: dict[int, msg.RankStepDone] = {}
        self._progress = StepProgress()
        self._replies: dict[int, object] = {}
        self._judged_s = self._moved_s = time.monotonic()
        self._is_loaded = False
        self._on_loading: Callable[[int, msg.RankLoading], None] | None = None
        # A file without a name: the ranks meet in it, and it is gone with the last of them.
        self._store_fd = os.memfd_create("ascendd-rendezvous")
        self._poller = select.poll()
        self.ranks: list[RankProcess] = []
        try:
            for rank in range(tp_size * pp_size):
                place = RankPlace.of(rank, tp_size, pp_size)
                process = RankProcess(place, self._store_fd, num_threads, command)
                self.ranks.append(process)
                self._poller.register(process.channel.fileno(), select.POLLIN)
            start = msg.RankStart(
                0, msgspec.json.encode(config), f"/proc/self/fd/{self._store_fd}",
                max(PATIENCE * self._deadline_s, self._load_deadline_s) + _COLLECTIVE_MARGIN_S,
            )  # fmt: skip
            for process in self.ranks:
                self._send(process, msgspec.structs.replace(start, rank=process.place.rank))
        except BaseException:
            self.close()
            raise

    # --- start-up -------------------------------------------------------------------------------------------------

    def device_facts(self) -> DeviceFacts:
        """Return the facts of the ranks' devices, of memory the least that any of them has."""
        hellos = self._replies_of(msg.RankHello)
        every = [msgspec.convert(hello.device_facts, DeviceFacts) for hello in hellos]
        return msgspec.structs.replace(
            every[0],
            free_bytes=min(facts.free_bytes for facts in every),
            total_bytes=min(facts.total_bytes for facts in every),
        )

    def load(
        self, engine_config_json: bytes, on_loading: Callable[[int, msg.RankLoading], None]
    ) -> list[msg.RankLoaded]:
        """Have every rank join the group and load its weights; return what each measured, by rank."""
        self._on_loading = on_loading
        self._send_all(msg.RankLoad(engine_config_json))
        loaded = self._replies_of(msg.RankLoaded)
        self.report.replaced_kernels = tuple(sorted({name for one in loaded for name in one.replaced_kernels}))
        return loaded

    def profile(self) -> list[msg.RankProfiled]:
        """Run the widest steps on all ranks; return activations and free memory, by rank."""
        self._send_all(msg.RankProfile())
        return self._replies_of(msg.RankProfiled)

    def set_num_blocks(self, num_blocks: int) -> None:
        """Have every rank make its KV cache with `num_blocks` blocks and capture its graphs."""
        self._send_all(msg.RankBlocks(num_blocks))
        self.report.num_graph_buckets = min(one.num_graph_buckets for one in self._replies_of(msg.RankReady))
        self._is_loaded = True

    # --- steps ----------------------------------------------------------------------------------------------------

    def submit(self, output: SchedulerOutput) -> None:
        """Send the step to every rank."""
        self._begin(output)
        self._submitted.append(output.step_seq)

    def collect(self) -> ModelRunnerOutput:
        """Wait for the rank that draws."""
        return self._finish(self._submitted.popleft())

    def run_now(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Send the step to every rank and wait for it; what is done of others meanwhile is kept."""
        self._begin(output)
        return self._finish(output.step_seq)

    def _begin(self, output: SchedulerOutput) -> None:
        self._running[output.step_seq] = output.num_tokens
        if len(self._running) == 1:
            self._watch_oldest()
        self._send_all(self._encoder.encode(output))

    def _finish(self, step_seq: int) -> ModelRunnerOutput:
        while step_seq not in self._done:
            self._pump(_TICK_S)
        done = self._done.pop(step_seq)
        return ModelRunnerOutput(done.token_ids, done.logprobs, done.prompt_logprobs)

    def _step_done(self, done: msg.RankStepDone) -> None:
        self._done[done.step_seq] = done
        self._running.pop(done.step_seq, None)
        self._progress.end(0, 0)
        self.report.num_replays = done.num_replays
        if self._running:
            self._watch_oldest()

    def _watch_oldest(self) -> None:
        """Count the time of the oldest step from now: the others have to wait for it."""
        self._progress.begin()
        self._progress.scheduled(next(iter(self._running.values())))

    def load_adapter(self, adapter_id: int, path: str) -> int:
        """Have every rank read its part; where one refuses the adapter, none keeps it."""
        self._send_all(msg.RankLoadAdapter(adapter_id, path))
        replies = self._replies_of(msg.RankAdapter)
        for reply in replies:
            if reply.fault is not None:
                for process, other in zip(self.ranks, replies, strict=True):
                    if other.fault is None:
                        self._send(process, msg.RankDropAdapter(adapter_id))
                raise reply.fault.to_error()
        return sum(reply.num_bytes for reply in replies)

    def drop_adapter(self, adapter_id: int) -> None:
        """Have every rank forget it."""
        self._send_all(msg.RankDropAdapter(adapter_id))

    def release_memory(self) -> None:
        """Leave it: no step is tried again, since the peers of the rank without memory may sit inside a collective."""

    def filenos(self) -> list[int]:
        """Return the links of the ranks."""
        return [process.channel.fileno() for process in self.ranks]

    def rank_rows(self) -> list[RankRow]:
        """Return what each rank last told."""
        now_s = time.monotonic()
        return [process.row(now_s) for process in self.ranks]

    def check(self) -> None:
        """Take what the ranks sent meanwhile."""
        self._pump(0.0)

    def close(self) -> None:
        """Have the ranks leave, and kill those that do not."""
        for process in self.ranks:
            with contextlib.suppress(IpcError):
                process.channel.send(msg.RankShutdown(), timeout_s=0.1)
        deadline = time.monotonic() + (_SHUTDOWN_S if self._is_loaded else 0.0)
        for process in self.ranks:
            process.status(max(0.0, deadline - time.monotonic()))
        self._kill()

    # --- watching -------------------------------------------------------------------------------------------------

    def _pump(self, timeout_s: float) -> None:
        """Take what has come, waiting for up to `timeout_s`, and judge. Raises what ends the group."""
        ready = {fd for fd, _ in self._poller.poll(timeout_s * 1000)}
        for process in self.ranks:
            if process.channel.fileno() in ready and (end := self._take(process)) is not None:
                raise self._fail(end)
        now = time.monotonic()
        if now - self._judged_s >= _TICK_S:
            self._judged_s = now
            self._judge(now)

    def _take(self, process: RankProcess) -> RankEnd | None:
        """Take the messages of one rank; return its end if they, or the link's, tell of it."""
        try:
            messages = process.channel.drain()
        except PeerClosed:
            return RankEnd(process.place, time.monotonic(), status=process.status(_ECHO_GRACE_S))
        except IpcError as error:
            return RankEnd(process.place, time.monotonic(), garbled=error.message)
        process.heard_at_s = time.monotonic()
        for message in messages:
            if not isinstance(message, msg.RankHeartbeat) or message.moved_since(process.heartbeat):
                self._moved_s = process.heard_at_s
            match message:
                case msg.RankHeartbeat():
                    process.heartbeat = message
                case msg.RankStepDone():
                    self._step_done(message)
                case msg.RankLoading():
                    if self._on_loading is not None:
                        self._on_loading(process.place.rank, message)
                case msg.RankFault():
                    return RankEnd(process.place, message.monotonic_s, message.fault)
                case _:
                    self._replies[process.place.rank] = message
        return None

    def _judge(self, now: float) -> None:
        heartbeat = self._progress.heartbeat()
        step_s, deadline_s = heartbeat.inflight_s, step_deadline_of(heartbeat, self._deadline_s)
        silent_s = max(now - process.heard_at_s for process in self.ranks)
        limit_s = deadline_s if self._is_loaded else max(deadline_s, _START_S)
        stuck_s = 0.0 if self._is_loaded else now - self._moved_s
        if step_s > deadline_s:
            what = f"a step has run for {step_s:.0f} s, the deadline is {deadline_s:g} s"
        elif silent_s > limit_s:
            what = f"a rank has been silent for {silent_s:.0f} s, the deadline is {limit_s:g} s"
        elif stuck_s > self._load_deadline_s:
            what = f"the start has stood still for {stuck_s:.0f} s, the deadline is {self._load_deadline_s:g} s"
        else:
            return
        error = hung_error([self._state_of(process) for process in self.ranks], what)
        self._end_hung(error)
        raise error

    def _end_hung(self, error: AscenddError, ended: Collection[int] = ()) -> None:
        """Log which rank hangs and the stacks of all but those that `ended`, then end all."""
        self._log.error("engine.rank_hung", code=error.code, reason=error.message, failed_rank=error.facts["rank"])
        self._dump_stacks(without=ended)
        self._kill()

    def _state_of(self, process: RankProcess) -> RankState:
        silent_s = time.monotonic() - process.heard_at_s
        return RankState(process.place, process.heartbeat, silent_s, process.place.rank in self._replies)

    def _fail(self, first: RankEnd) -> AscenddError:
        """Hear the other ranks out, end all, and return the error to raise."""
        ends = {first.place.rank: first}
        deadline = time.monotonic() + _ECHO_GRACE_S
        while len(ends) < len(self.ranks) and (left := deadline - time.monotonic()) > 0:
            for process in self.ranks:
                if process.place.rank in ends:
                    with contextlib.suppress(KeyError):
                        self._poller.unregister(process.channel.fileno())
            ready = {fd for fd, _ in self._poller.poll(left * 1000)}
            for process in self.ranks:
                if process.place.rank not in ends and process.channel.fileno() in ready:
                    end = self._take(process)
                    if end is not None:
                        ends[process.place.rank] = end
        cause = earliest_cause(list(ends.values()))
        error = cause.error
        living = [process for process in self.ranks if process.place.rank not in ends and process.status() is None]
        if cause.is_echo and living:
            # It gave up waiting for one that hangs.
            states = [self._state_of(process) for process in living]
            error = hung_error(states, f"{error.message}, though no other rank has ended")
            self._end_hung(error, set(ends))
            return error
        # Those who still run may show what the cause was about; those who ended told their own stack.
        self._dump_stacks(without=set(ends))
        echoes = sorted(rank for rank in ends if rank != cause.place.rank)
        self._log.error(
            "engine.group_failed",
            code=error.code,
            reason=error.message,
            failed_rank=cause.place.rank,
            also_ended=echoes,
        )
        self._kill()
        return error

    def _dump_stacks(self, without: Collection[int] = ()) -> None:
        """Log the stacks of all ranks but `without` before anything is killed; one that is stopped cannot answer."""
        asked = [process for process in self.ranks if process.place.rank not in without]
        for process in asked:
            process.ask_for_stacks()
        stacks = {process.place.rank: "" for process in asked}
        deadline, is_quiet = time.monotonic() + _STACKS_S, False
        while time.monotonic() < deadline and not (is_quiet and all(stacks.values())):
            time.sleep(_STACKS_TICK_S)
            parts = {process.place.rank: process.read_stacks() for process in asked}
            is_quiet = not any(parts.values())
            for rank, part in parts.items():
                stacks[rank] += part
        for rank, text in stacks.items():
            self._log.error(
                "engine.rank_stacks", of_rank=rank, stacks=text or "(it does not answer; it may be stopped)"
            )

    def _kill(self) -> None:
        for process in self.ranks:
            process.kill()
        for process in self.ranks:
            process.close()
        self.ranks = []
        self._poller = select.poll()
        if self._store_fd >= 0:
            os.close(self._store_fd)
            self._store_fd = -1

    def _replies_of(self, kind: type[M]) -> list[M]:
        """Wait for one reply of `kind` from each rank."""
        while len(self._replies) < len(self.ranks):
            self._pump(_TICK_S)
        replies, self._replies = self._replies, {}
        ordered = []
        for rank in sorted(replies):
            reply = replies[rank]
            assert isinstance(reply, kind), f"rank {rank} answered {type(reply).__name__}, not {kind.__name__}"
            ordered.append(reply)
        return ordered

    def _send_all(self, message: msgspec.Struct) -> None:
        for process in self.ranks:
            self._send(process, message)

    def _send(self, process: RankProcess, message: msgspec.Struct) -> None:
        # One whose link is gone has told why, or its exit status does: the next look finds it.
        with contextlib.suppress(PeerClosed):
            process.channel.send(message)
