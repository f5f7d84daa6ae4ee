"""
What a step costs vLLM's scheduler, on the trace of host_overhead.py and a model that takes no time; in vLLM's environment.

    VLLM_VENV/bin/python tests/bench/host_overhead_vllm.py MODEL [--steps 200] [--sequences 1 32 256 512]

MODEL is a Hugging Face folder, whose config.json is all that is read. A step here is vLLM's `schedule`, its
`update_from_output` and the encoding of what it sends; the tensors of the batch are not in it, so it goes beside the
columns "step" less "inputs" of host_overhead.py. Times are CPU time of the thread. Nothing of ours is imported.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from pathlib import Path

BLOCK_SIZE = 16
CONTEXT = 2048
NUM_PROMPT = 200


def decode(model: Path, num_sequences: int, num_steps: int) -> list[float]:
    """Return the ms of `num_steps` steps in which all sequences decode."""
    import torch
    from vllm import SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.hashing import sha256_cbor
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request
    from vllm.v1.serial_utils import MsgpackEncoder
    from vllm.v1.structured_output import StructuredOutputManager

    num_blocks = num_sequences * CONTEXT // BLOCK_SIZE
    config = EngineArgs(
        model=str(model), dtype="float32", max_model_len=CONTEXT, max_num_seqs=num_sequences, block_size=BLOCK_SIZE,
        max_num_batched_tokens=max(8192, num_sequences), enable_prefix_caching=True, generation_config="vllm",
        async_scheduling=False,
    ).create_engine_config()  # fmt: skip
    config.cache_config.num_gpu_blocks = num_blocks
    spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32)
    scheduler = Scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(num_blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
        log_stats=False,
    )
    init_none_hash(sha256_cbor)
    hasher = get_request_block_hasher(BLOCK_SIZE, sha256_cbor)
    params = SamplingParams(max_tokens=num_steps + 64, temperature=0.0, ignore_eos=True)
    for number in range(num_sequences):
        prompt = [(number * 7 + at) % 5000 for at in range(NUM_PROMPT + number % 16)]
        scheduler.add_request(Request(str(number), prompt, params, None, block_hasher=hasher))
    encoder = MsgpackEncoder()
    found: list[float] = []

    def step() -> tuple[int, float]:
        started = time.thread_time()
        output = scheduler.schedule()
        scheduled = time.thread_time()
        # What the model would give is made outside of the measured time.
        counts = output.num_scheduled_tokens
        requests = scheduler.requests
        drawn = [[1000] if requests[name].num_computed_tokens >= requests[name].num_tokens else [] for name in counts]
        result = ModelRunnerOutput(list(counts), {name: at for at, name in enumerate(counts)}, drawn)
        resumed = time.thread_time()
        for sent in scheduler.update_from_output(output, result).values():
            encoder.encode(sent)
        return sum(map(bool, drawn)), 1000 * (scheduled - started + time.thread_time() - resumed)

    while step()[0] < num_sequences:
        pass
    gc.collect()
    gc.freeze()
    gc.disable()
    for _ in range(num_steps):
        num_drawn, took_ms = step()
        assert num_drawn == num_sequences
        found.append(took_ms)
    gc.enable()
    return found


def main() -> None:
    """Print one line for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 32, 256, 512])
    args = parser.parse_args()
    print("sequences  vLLM's schedule, update and encoding ms, p50    p99   us a sequence", flush=True)
    for num_sequences in args.sequences:
        found = sorted(decode(args.model, num_sequences, args.steps))
        p50 = statistics.median(found)
        print(
            f"{num_sequences:>9}  {p50:>42.3f} {found[int(len(found) * 0.99)]:>6.3f}"
            f"  {1000 * p50 / num_sequences:>14.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
