"""EngineCore: schedule, execute, update. No sockets, no threads: messages in, messages out."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable

from ascendd.config.resolve import EngineConfig
from ascendd.engine.exec.executor import Executor
from ascendd.engine.kv.block_pool import NULL_BLOCK_ID
from ascendd.engine.kv.kv_cache_manager import KVCacheManager
from ascendd.engine.lora.adapter_registry import AdapterRegistry
from ascendd.engine.out_of_memory import OutOfMemory
from ascendd.engine.sched.output import DrawnTokens, ModelRunnerOutput, ScheduledChunk, SchedulerOutput
from ascendd.engine.sched.scheduler import Scheduler
from ascendd.engine.sequence import Sequence, SequenceStatus
from ascendd.engine.sequence_check import check_sequence
from ascendd.engine.sequence_times import note_step, note_tokens
from ascendd.errors import AscenddError, DeadlineExceeded, DeviceOutOfMemory, InvalidRequest
from ascendd.ipc.messages import (
    NO_TOKEN,
    AddSequence,
    Fault,
    SamplingParams,
    SequenceFailed,
    StepOutput,
    TokenLogprobs,
)
from ascendd.telemetry.metrics import ENGINE_METRICS, MetricStore

# Prompt tokens of a step in which somebody decodes, as a share of the budget: bounds the pause between two tokens.
DECODE_PREFILL_SHARE = 0.5
# Of the sequence that a probe is; those of requests are positive.
PROBE_ID = -2
# The steps of the scheduler count from 1.
PROBE_STEP = 0


class EngineCore:
    """The engine without its process: sequences come in, one StepOutput comes out of each step."""

    def __init__(
        self,
        config: EngineConfig,
        executor: Executor,
        eos_token_ids: tuple[int, ...],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.metrics = MetricStore(ENGINE_METRICS)
        self.executor = executor
        self.report = executor.report
        self._eos_token_ids = frozenset(eos_token_ids)
        self._clock = clock
        self._kv = KVCacheManager(
            config.num_blocks, config.block_size, enable_prefix_caching=config.enable_prefix_caching
        )
        self._scheduler = Scheduler(
            self._kv,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            decode_prefill_tokens=max(config.block_size, int(config.max_num_batched_tokens * DECODE_PREFILL_SHARE)),
            max_adapters=config.max_loras,
            num_batches=executor.max_in_flight,
        )
        self._in_flight: deque[SchedulerOutput] = deque()
        is_alone = config.tensor_parallel_size * config.pipeline_parallel_size == 1
        self._out_of_memory = OutOfMemory(self._scheduler, executor, is_alone=is_alone)
        self._adapters = AdapterRegistry(executor, config.max_cpu_loras, config.model_name)
        self.on_scheduled: Callable[[int], None] = _nobody_asks
        self._seed_root = config.seed
        self._num_seeds = 0
        self._failed: list[SequenceFailed] = []
        self._counted_preemptions = self._counted_queries = self._counted_hits = self._counted_replays = 0
        self._set_constants()

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self._scheduler.has_work or bool(self._in_flight)

    @property
    def num_running(self) -> int:
        """Sequences in the batch."""
        return self._scheduler.num_running

    @property
    def num_waiting(self) -> int:
        """Sequences waiting for a place."""
        return self._scheduler.num_waiting

    @property
    def num_step_tokens(self) -> int:
        """Tokens of the oldest step that is not at its end."""
        return self._in_flight[0].num_tokens if self._in_flight else 0

    @property
    def step_request_ids(self) -> list[str]:
        """Request ids of the oldest step that is not at its end."""
        return [chunk.sequence.request_id for chunk in self._in_flight[0].chunks] if self._in_flight else []

    @property
    def num_preemptions(self) -> int:
        """Preemptions since the start."""
        return self._scheduler.num_preemptions

    def add(self, message: AddSequence) -> SequenceFailed | None:
        """Take a sequence in, or return why not: a request that slipped past the API must not end the process."""
        try:
            check_sequence(message, vocab_size=self.executor.vocab_size, max_model_len=self.config.max_model_len)
            if self._scheduler.knows(message.seq_id):
                raise InvalidRequest(f"sequence id {message.seq_id} is in use")
            adapter_id, cache_key = 0, b""
            if message.adapter:
                adapter_id, cache_key = self._adapters.acquire(message.adapter, self._scheduler.adapter_ids)
        except AscenddError as error:
            return SequenceFailed(message.seq_id, Fault.from_error(error))
        sequence = Sequence(
            seq_id=message.seq_id,
            token_ids=list(message.prompt_token_ids),
            params=message.params,
            seed=self._new_seed() if message.params.seed is None else message.params.seed,
            eos_token_ids=self._eos_token_ids,
            request_id=message.request_id,
            priority=message.priority,
            adapter_id=adapter_id,
            cache_key=cache_key,
            deadline_s=message.deadline_s,
            max_model_len=self.config.max_model_len,
            rope_switch_length=self.config.rope_switch_length,
        )
        sequence.arrived_s = self._clock()
        self._scheduler.add(sequence)
        self.metrics.inc("ascendd_engine_prompt_tokens_total", len(message.prompt_token_ids))
        return None

    @property
    def adapter_names(self) -> tuple[str, ...]:
        """Names of the adapters that requests may use."""
        return self._adapters.pool.names

    def load_adapter(self, name: str, path: str) -> None:
        """Load the adapter in folder `path` as `name`. Raises AdapterInvalid or QueueFull; what ran goes on."""
        self._adapters.load(name, path, self._scheduler.adapter_ids)

    def unload_adapter(self, name: str) -> None:
        """Take `name` out; sequences that use it run to their end. Raises ModelUnknown."""
        self._adapters.unload(name, self._scheduler.adapter_ids)

    def set_limits(self, max_num_seqs: int, decode_prefill_tokens: int) -> None:
        """Change the batch while it runs, within what the engine was built for."""
        self._scheduler.set_limits(max_num_seqs, decode_prefill_tokens)
        self._refresh_gauges()

    def abort(self, seq_ids: list[int]) -> None:
        """Forget sequences at once; their blocks are free when this returns. Unknown and finished ids are ignored."""
        for seq_id in seq_ids:
            self._scheduler.abort(seq_id)
        self._refresh_gauges()

    def abort_all(self) -> int:
        """Forget every sequence, because the one who asked for them is gone; return their number."""
        seq_ids = self._scheduler.seq_ids
        self.abort(seq_ids)
        return len(seq_ids)

    def expire(self) -> list[SequenceFailed]:
        """End the sequences whose deadline has passed."""
        late = self._scheduler.expired(self._clock())
        return [
            SequenceFailed(
                sequence.seq_id,
                Fault.from_error(
                    DeadlineExceeded(
                        f"the deadline passed after {sequence.num_output_tokens} of {sequence.params.max_tokens} tokens"
                    )
                ),
            )
            for sequence in late
        ]

    def step(self) -> StepOutput | None:
        """Run one step and return what it produced, or None where it produced no token."""
        started = self._clock()
        tokens = DrawnTokens()
        prompt_logprobs: dict[int, list[TokenLogprobs]] = {}
        if (done := self._execute()) is not None:
            output, result = done
            tokens = self._scheduler.update_from_output(output, result)
            prompt_logprobs = result.prompt_logprobs
        self._failed += map(_nothing_to_draw, tokens.take_errors())
        ended_s = self._clock()
        note_tokens(tokens, ended_s, self.metrics)
        # Who only has a prompt scored gets none.
        self._observe(ended_s - started, len(tokens) - tokens.token_ids.count(NO_TOKEN))
        if not tokens.sequences and not prompt_logprobs:
            return None
        return StepOutput(
            seq_ids=[sequence.seq_id for sequence in tokens.sequences],
            token_ids=tokens.token_ids,
            finish=tokens.finish,
            num_cached=tokens.num_cached,
            logprobs=tokens.logprobs if any(tokens.logprobs) else [],
            prompt_logprobs=prompt_logprobs,
        )

    def _execute(self) -> tuple[SchedulerOutput, ModelRunnerOutput] | None:
        """
        Begin steps until the executor is full and bring the oldest to its end; None where there is nothing to do.

        A step that the device has no memory for is tried once more, smaller.
        """
        for _attempt in range(2):
            while len(self._in_flight) < self.executor.max_in_flight:
                output = self._scheduler.schedule()
                if not output.chunks:
                    break
                self.executor.submit(output)
                self._in_flight.append(output)
            if not self._in_flight:
                return None
            self.on_scheduled(self._in_flight[0].num_tokens)
            started_s = self._clock()
            try:
                result = self.executor.collect()
            except DeviceOutOfMemory as error:
                if not self._out_of_memory.may_retry:
                    raise
                self._failed += self._out_of_memory.relieve(self._in_flight.popleft(), error)
            else:
                self._out_of_memory.step_done()
                output = self._in_flight.popleft()
                note_step(output, started_s, self.metrics)
                return output, result
        return None

    def probe(self) -> None:
        """
        Compute one token through every layer, beside whatever runs. Raises what a step raises.

        It has a row of its own in the batch and writes to the null block, so it takes nothing from anybody, however
        full the engine is.
        """
        sequence = Sequence(PROBE_ID, [0], SamplingParams(max_tokens=1, temperature=0.0), seed=0)
        sequence.block_ids = [NULL_BLOCK_ID]
        sequence.status = SequenceStatus.RUNNING
        try:
            self.executor.run_now(SchedulerOutput(PROBE_STEP, [ScheduledChunk(sequence, 0, 1)]))
        finally:
            sequence.status = SequenceStatus.FINISHED

    def take_failed(self) -> list[SequenceFailed]:
        """Return the sequences that ended in a step for want of a token that may be drawn; each is told once."""
        failed, self._failed = self._failed, []
        return failed

    def warm_up(self) -> None:
        """Run a prompt and two decodes through every layer, so that the first request pays for nothing."""
        length = max(1, min(32, self.config.max_model_len - 3))
        token_ids = [index % self.executor.vocab_size for index in range(length)]
        self.add(AddSequence(-1, token_ids, SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True)))
        while self.has_work:
            self.step()
        self._kv.pool.clear_published()
        self.metrics = MetricStore(ENGINE_METRICS)
        self._set_constants()
        self._kv.num_prefix_queries = self._kv.num_prefix_hits = 0
        self._counted_queries = self._counted_hits = 0

    def _set_constants(self) -> None:
        self.metrics.set("ascendd_engine_kv_blocks", self.config.num_blocks)
        self.metrics.set("ascendd_engine_graph_buckets", self.report.num_graph_buckets)
        self.metrics.set("ascendd_engine_step_token_limit", self._scheduler.budget.limit)
        self._refresh_gauges()
        for kernel in self.report.replaced_kernels:
            self.metrics.set("ascendd_engine_kernel_replaced", 1, (kernel,))

    def check_integrity(self) -> None:
        """Raise AssertionError where the block accounts do not add up; run whenever the engine becomes idle."""
        self._scheduler.check_integrity()

    def _new_seed(self) -> int:
        if self._seed_root is None:
            return secrets.randbits(64)
        self._num_seeds += 1
        return (self._seed_root * 1_000_003 + self._num_seeds) % 2**64

    def _observe(self, duration_s: float, num_tokens: int) -> None:
        metrics, scheduler, kv = self.metrics, self._scheduler, self._kv
        metrics.inc("ascendd_engine_steps_total")
        metrics.observe("ascendd_engine_step_duration_seconds", duration_s)
        metrics.inc("ascendd_engine_generation_tokens_total", num_tokens)
        metrics.inc("ascendd_engine_preemptions_total", scheduler.num_preemptions - self._counted_preemptions)
        metrics.inc("ascendd_engine_prefix_cache_queries_total", kv.num_prefix_queries - self._counted_queries)
        metrics.inc("ascendd_engine_prefix_cache_hits_total", kv.num_prefix_hits - self._counted_hits)
        metrics.inc("ascendd_engine_graph_replays_total", self.report.num_replays - self._counted_replays)
        self._counted_replays = self.report.num_replays
        self._counted_preemptions = scheduler.num_preemptions
        self._counted_queries, self._counted_hits = kv.num_prefix_queries, kv.num_prefix_hits
        for outcome, num in self._out_of_memory.take_counts().items():
            metrics.inc("ascendd_engine_out_of_memory_total", num, (outcome.value,))
        metrics.set("ascendd_engine_step_token_limit", scheduler.budget.limit)
        self._refresh_gauges()

    def _refresh_gauges(self) -> None:
        if self._adapters.pool.is_draining:
            self._adapters.collect(self._scheduler.adapter_ids)
        self.metrics.set("ascendd_engine_sequences_running", self._scheduler.num_running)
        self.metrics.set("ascendd_engine_sequence_limit", self._scheduler.max_num_seqs)
        self.metrics.set("ascendd_engine_prefill_token_limit", self._scheduler.decode_prefill_tokens)
        self.metrics.set("ascendd_engine_sequences_waiting", self._scheduler.num_waiting)
        self.metrics.set("ascendd_engine_kv_blocks_used", self._kv.pool.num_used_blocks)
        self.metrics.set("ascendd_engine_kv_usage_ratio", self._kv.usage)
        self.metrics.set("ascendd_engine_kv_fragmentation_ratio", self._scheduler.kv_fragmentation)


def _nobody_asks(_num_tokens: int) -> None:
    pass


def _nothing_to_draw(sequence: Sequence) -> SequenceFailed:
    grammar = sequence.params.grammar
    banned = "`allowed_token_ids`, `bad_words`, `min_tokens` and `logit_bias`"
    if grammar is not None:
        banned = f"`{grammar.param}`, {banned}"
    error = InvalidRequest(
        f"no token is left to choose as token {sequence.num_output_tokens + 1} of the answer: {banned} "
        "together ban all of them",
        param="allowed_token_ids" if grammar is None else grammar.param,
    )
    return SequenceFailed(sequence.seq_id, Fault.from_error(error))
