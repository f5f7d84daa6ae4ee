"""
Our engine beside `transformers` generate() in one run: the same model, dtype, prompts and threads, in turn.

    python tests/bench/against_transformers.py ARTEFACT GGUF [--rounds 3]

Prompts of 24 to 320 tokens, 48 tokens out, all sent at once; each side in a process of its own, both kept loaded, rounds
alternating, so that a noisy machine hurts both. Prints a table, judges nothing.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

NUM_OUT = 48
BATCHES = (1, 16)


def prompts(count: int) -> list[list[int]]:
    """Return `count` prompts of random token ids; the same for both sides."""
    rng = random.Random(count)
    return [[rng.randrange(1000, 40_000) for _ in range(rng.randint(24, 320))] for _ in range(count)]


def ours(artefact: Path, weight_dtype: str = "auto") -> Callable[[int], float]:
    """Return a function that runs a batch on our engine and gives output tokens per second."""
    from ascendd.config.model_facts import read_model_facts
    from ascendd.config.resolve import resolve
    from ascendd.config.schema import EngineSection, InstanceConfig, ModelSection
    from ascendd.device.cpu import CpuDevice
    from ascendd.engine.core import EngineCore
    from ascendd.engine.exec.executor import InProcessExecutor
    from ascendd.engine.runner.model_runner import ModelRunner
    from ascendd.ipc.messages import AddSequence, SamplingParams

    facts, device = read_model_facts(artefact), CpuDevice()
    config = InstanceConfig(
        model=ModelSection(path=str(artefact), dtype="float32"),
        engine=EngineSection(enable_prefix_caching=False, weight_dtype=weight_dtype),  # type: ignore[arg-type]
    )
    resolved = resolve(config, facts, device.facts)
    core = EngineCore(resolved, InProcessExecutor(ModelRunner(resolved, facts, device)), ())
    core.warm_up()

    def run(count: int) -> float:
        for index, prompt in enumerate(prompts(count)):
            core.add(AddSequence(index, prompt, SamplingParams(max_tokens=NUM_OUT, temperature=0.0, ignore_eos=True)))
        started, tokens = time.perf_counter(), 0
        while core.has_work:
            output = core.step()
            tokens += 0 if output is None else len(output.seq_ids)
        assert tokens == count * NUM_OUT
        return tokens / (time.perf_counter() - started)

    return run


def theirs(gguf: Path) -> Callable[[int], float]:
    """Return a function that runs a batch on transformers and gives output tokens per second."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32).eval()

    def run(count: int) -> float:
        batch = prompts(count)
        width = max(map(len, batch))
        token_ids = torch.tensor([[2] * (width - len(prompt)) + prompt for prompt in batch])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in batch])
        started = time.perf_counter()
        with torch.inference_mode():
            model.generate(
                token_ids,
                attention_mask=mask,
                max_new_tokens=NUM_OUT,
                min_new_tokens=NUM_OUT,
                do_sample=False,
                pad_token_id=2,
            )
        return count * NUM_OUT / (time.perf_counter() - started)

    return run


def side(name: str, path: Path) -> None:
    """Serve one side over pipes: a batch size in, tokens per second out."""
    import torch

    torch.set_num_threads(2)
    run = (ours if name == "ours" else theirs)(path)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run(int(line))) + "\n")
        sys.stdout.flush()


def main() -> None:
    """Alternate the two sides and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artefact", type=Path)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=("ours", "transformers"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        side(args.side, args.artefact if args.side == "ours" else args.gguf)
        return
    sides = {
        name: subprocess.Popen(
            [sys.executable, __file__, str(args.artefact), str(args.gguf), "--side", name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            # The daemon gives its engine the same (supervisor.spec).
            env={"PATH": "/usr/bin:/bin", "GOMP_SPINCOUNT": "100000"},
        )
        for name in ("ours", "transformers")
    }  # fmt: skip

    def ask(name: str, count: int) -> float:
        process = sides[name]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{count}\n")
        process.stdin.flush()
        return float(json.loads(process.stdout.readline()))

    for name in sides:  # the first of everything is slower on both sides
        ask(name, 1)
    print(f"{'requests':>8}  {'ours tok/s':>10}  {'transformers tok/s':>18}  {'ratio':>6}  {'ratios of the rounds'}")
    for count in BATCHES:
        rounds = [(ask("ours", count), ask("transformers", count)) for _ in range(args.rounds)]
        ratios = [a / b for a, b in rounds]
        a, b = (statistics.median(values) for values in zip(*rounds, strict=True))
        print(
            f"{count:>8}  {a:>10.1f}  {b:>18.1f}  {statistics.median(ratios):>6.2f}  {', '.join(f'{r:.2f}' for r in ratios)}"
        )
    for process in sides.values():
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


if __name__ == "__main__":
    main()
