"""
Time to the first token of a prompt whose first 1,024 tokens are in the prefix cache, beside the same without. Prints.

    python tests/bench/bench_prefix_ttft.py ARTEFACT [--rounds 3]

Each round has a prefix of its own, so its first request computes everything; the goal is a ratio of at most 0.15.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path

from ascendd.config.model_facts import read_model_facts
from ascendd.config.resolve import resolve
from ascendd.config.schema import EngineSection, InstanceConfig, ModelSection
from ascendd.device.cpu import CpuDevice
from ascendd.engine.core import EngineCore
from ascendd.engine.exec.executor import InProcessExecutor
from ascendd.engine.runner.model_runner import ModelRunner
from ascendd.ipc.messages import AddSequence, SamplingParams

NUM_SHARED, NUM_OWN = 1024, 16
GOAL = 0.15


def first_token_s(core: EngineCore, seq_id: int, prompt: list[int]) -> float:
    """Return the seconds from the arrival of `prompt` to its token."""
    started = time.perf_counter()
    core.add(AddSequence(seq_id, prompt, SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)))
    while core.has_work:
        core.step()
    return time.perf_counter() - started


def bench_shared_prefix(artefact: Path, rounds: int = 3) -> float:
    """Print both times of each round; return the ratio of the medians."""
    facts, device = read_model_facts(artefact), CpuDevice()
    config = InstanceConfig(
        model=ModelSection(path=str(artefact), max_model_len=2048),
        engine=EngineSection(device="cpu", max_num_blocks=1024),
    )
    resolved = resolve(config, facts, device.facts)
    core = EngineCore(resolved, InProcessExecutor(ModelRunner(resolved, facts, device)), ())
    core.warm_up()
    rng = random.Random(1)
    times: list[tuple[float, float]] = []
    for index in range(rounds):
        shared, *own = ([rng.randrange(1000, 40_000) for _ in range(num)] for num in (NUM_SHARED, NUM_OWN, NUM_OWN))
        first, second = (first_token_s(core, 2 * index + which, shared + own[which]) for which in (0, 1))
        times.append((first, second))
        print(f"round {index + 1}: first {first * 1000:8.1f} ms   second {second * 1000:8.1f} ms")
    ratio = statistics.median(second for _, second in times) / statistics.median(first for first, _ in times)
    print(f"shared prefix of {NUM_SHARED} tokens, {NUM_OWN} of its own: ratio {ratio:.3f} (goal: at most {GOAL})")
    return ratio


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artefact", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    bench_shared_prefix(args.artefact, args.rounds)
