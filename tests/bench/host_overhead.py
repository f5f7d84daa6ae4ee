"""
What a step costs the host: the whole EngineCore on a device that takes no time, decoding batches of several sizes.

    python tests/bench/host_overhead.py [--steps 200] [--sequences 1 32 256 512] [--profile]

A step here is all that the host does for one: schedule, tensors of the batch (block tables, slots, positions), booking
of tokens, the message to the API and its encoding. Times are CPU time of the thread, so a busy machine stretches them
little; each line has the median and the 99th percentile of its steps. Prints a table, judges nothing; the goal is 0.2 ms
at 32 sequences, 0.6 ms at 256, linear beyond. host_overhead_vllm.py has the same trace on vLLM's scheduler.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import statistics
import time

import msgspec

from ascendd.config.plan import MemoryPlan
from ascendd.config.resolve import EngineConfig
from ascendd.device.base import AttentionForm
from ascendd.engine.core import EngineCore
from ascendd.engine.exec.executor import InProcessExecutor
from ascendd.engine.runner.input_batch import InputBatch
from ascendd.engine.runner.runner_report import RunnerReport
from ascendd.engine.sched.output import ModelRunnerOutput, SchedulerOutput
from ascendd.ipc.messages import AddSequence, SamplingParams

BLOCK_SIZE = 16
CONTEXT = 2048
NUM_PROMPT = 200


class NullRunner:
    """Prepares a step as the real runner does and draws the same token for everybody, at once."""

    vocab_size = 50_000
    report = RunnerReport(())

    def __init__(self, max_num_seqs: int) -> None:
        self.prepare_s = 0.0
        self._batch = InputBatch(max_num_seqs, -(-CONTEXT // BLOCK_SIZE), BLOCK_SIZE, form=AttentionForm.SEQUENCE_TABLE)

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Build the inputs and no more."""
        started = time.thread_time()
        self._batch.prepare(output.chunks)
        self.prepare_s = time.thread_time() - started
        return ModelRunnerOutput([1000] * len(output.sampling_chunks))

    def release_memory(self) -> None:
        """There is none."""

    def load_adapter(self, adapter_id: int, path: str) -> int:
        """There are none."""
        raise NotImplementedError("the null device has no adapters")

    def drop_adapter(self, adapter_id: int) -> None:
        """There are none."""
        raise NotImplementedError("the null device has no adapters")


def make_core(max_num_seqs: int) -> tuple[EngineCore, NullRunner]:
    """Build a core with room for all sequences at full length."""
    num_blocks = max_num_seqs * CONTEXT // BLOCK_SIZE
    plan = MemoryPlan(
        weights_bytes=0, reserve_bytes=0, budget_bytes=0, bytes_per_token=1, bytes_per_block=BLOCK_SIZE,
        block_size=BLOCK_SIZE, num_blocks=num_blocks, origin="bench",
    )  # fmt: skip
    config = EngineConfig(
        model_path="", model_name="bench", device="null", dtype="float16", kv_cache_dtype="float16",
        block_size=BLOCK_SIZE, num_blocks=num_blocks, max_model_len=CONTEXT, max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max(8192, max_num_seqs), enable_prefix_caching=True, enforce_eager=True,
        tensor_parallel_size=1, pipeline_parallel_size=1, num_threads=1, seed=0, plan=plan, origins={},
    )  # fmt: skip
    runner = NullRunner(max_num_seqs)
    return EngineCore(config, InProcessExecutor(runner), (0,)), runner


def decode(num_sequences: int, num_steps: int, profile: cProfile.Profile | None) -> list[tuple[float, float, float]]:
    """Return (whole step, preparing, encoding) in ms of `num_steps` steps in which all sequences decode."""
    core, runner = make_core(num_sequences)
    params = SamplingParams(max_tokens=num_steps + 64, temperature=0.0, ignore_eos=True)
    for seq_id in range(num_sequences):
        core.add(AddSequence(seq_id, [(seq_id * 7 + at) % 5000 for at in range(NUM_PROMPT + seq_id % 16)], params))
    while core.num_waiting or (output := core.step()) is None or len(output.seq_ids) < num_sequences:
        if core.num_waiting:
            core.step()
    encoder, found = msgspec.msgpack.Encoder(), []
    gc.collect()
    gc.freeze()
    gc.disable()  # as the engine does (main.py)
    for _ in range(num_steps):
        if profile is not None:
            profile.enable()
        started = time.thread_time()
        output = core.step()
        stepped = time.thread_time()
        encoder.encode(output)
        ended = time.thread_time()
        if profile is not None:
            profile.disable()
        assert output is not None
        assert len(output.seq_ids) == num_sequences
        found.append((1000 * (ended - started), 1000 * runner.prepare_s, 1000 * (ended - stepped)))
    gc.enable()
    return found


def main() -> None:
    """Print one line for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 32, 256, 512])
    parser.add_argument("--profile", action="store_true", help="say where the time goes at each size")
    args = parser.parse_args()
    print("sequences  step ms, p50    p99   inputs ms, p50   encoding ms, p50   us a sequence")
    for num_sequences in args.sequences:
        profile = cProfile.Profile() if args.profile else None
        found = decode(num_sequences, args.steps, profile)
        whole, inputs, encoding = (sorted(values) for values in zip(*found, strict=True))
        p50 = statistics.median(whole)
        print(
            f"{num_sequences:>9}  {p50:>12.3f} {whole[int(len(whole) * 0.99)]:>6.3f}  {statistics.median(inputs):>15.3f}"
            f"  {statistics.median(encoding):>17.3f}  {1000 * p50 / num_sequences:>14.2f}",
            flush=True,
        )
        if profile is not None:
            pstats.Stats(profile).sort_stats("tottime").print_stats(15)


if __name__ == "__main__":
    main()
