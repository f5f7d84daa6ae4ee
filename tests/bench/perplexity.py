"""
What each weight format costs in accuracy: perplexity of a text, and the difference to float32 in the same run.

    python tests/bench/perplexity.py ARTEFACT [--text LICENSE] [--tokens 1024]

The text is any file; without one it is this repository's LICENSE, a real English text that everybody has. Tokens are
scored in windows of 256, each from its second token on. Prints a table, judges nothing.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from tokenizers import Tokenizer

from ascendd.config.model_facts import read_model_facts
from ascendd.config.resolve import resolve
from ascendd.config.schema import EngineSection, InstanceConfig, ModelSection
from ascendd.device.cpu import CpuDevice
from ascendd.engine.runner.model_runner import ModelRunner
from ascendd.engine.sched.output import ScheduledChunk, SchedulerOutput
from ascendd.engine.sequence import Sequence, SequenceStatus
from ascendd.ipc.messages import SamplingParams

WINDOW = 256
FORMATS = ("float32", "float16", "int8")


def mean_loss(artefact: Path, weight_dtype: str, token_ids: list[int]) -> tuple[float, int]:
    """Return the mean negative log-likelihood of the scored tokens, and how many they are."""
    facts, device = read_model_facts(artefact), CpuDevice()
    config = InstanceConfig(
        model=ModelSection(path=str(artefact), dtype="float32", max_model_len=2 * WINDOW),
        engine=EngineSection(weight_dtype=weight_dtype, max_num_blocks=64),  # type: ignore[arg-type]
    )
    runner = ModelRunner(resolve(config, facts, device.facts), facts, device)
    # Every position's logits are asked for as those of prompt tokens.
    params, total, count = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0), 0.0, 0
    for number, begin in enumerate(range(0, len(token_ids) - 1, WINDOW)):
        window = token_ids[begin : begin + WINDOW]
        if len(window) < 2:
            break
        sequence = Sequence(number, list(window), params, seed=0)
        sequence.status = SequenceStatus.RUNNING
        sequence.block_ids = list(range(1, 2 + len(window) // 16))
        output = runner.execute(SchedulerOutput(0, [ScheduledChunk(sequence, 0, len(window))]))
        scored = [entry for entries in output.prompt_logprobs.values() for entry in entries if entry is not None]
        total -= sum(entry.logprob for entry in scored)
        count += len(scored)
        sequence.status = SequenceStatus.FINISHED
    return total / count, count


def main() -> None:
    """Score the text with each format."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artefact", type=Path)
    parser.add_argument("--text", type=Path, default=Path(__file__).parents[2] / "LICENSE")
    parser.add_argument("--tokens", type=int, default=1024)
    args = parser.parse_args()
    torch.set_num_threads(2)
    text = args.text.read_text(encoding="utf-8")
    token_ids = Tokenizer.from_file(str(args.artefact / "tokenizer.json")).encode(text).ids[: args.tokens]
    print(f"{'weights':<8}  {'perplexity':>10}  {'difference':>10}   tokens scored of {args.text.name}")
    reference = 0.0
    for name in FORMATS:
        loss, count = mean_loss(args.artefact, name, token_ids)
        reference = reference or math.exp(loss)
        print(
            f"{name:<8}  {math.exp(loss):>10.4f}  {100 * (math.exp(loss) / reference - 1):>9.3f}%   {count}", flush=True
        )


if __name__ == "__main__":
    main()
