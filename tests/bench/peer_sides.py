"""
The sides of `peers.py`: each answers one case after another, in a process and an environment of its own.

A side is run as `PYTHON peer_sides.py NAME ARTEFACT GGUF FOLDER`: it loads, prints its version and how long that took as
one line of JSON, and then answers each line of its input, a case's name, with one line of figures. This file is read by
interpreters that have no `ascendd`, hence imports only the standard library at its top.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

MAX_LEN = 1152
NUM_THREADS = len(os.sched_getaffinity(0))
Figures = dict[str, float]
Run = Callable[["Case"], Figures]


@dataclass(frozen=True)
class Case:
    """Requests that are sent at once; `late` long prompts of one token each keep arriving beside them."""

    label: str
    num_requests: int
    shortest: int
    longest: int
    num_out: int
    late: bool = False

    @property
    def prompts(self) -> list[list[int]]:
        """Random token ids, the same for every side."""
        rng = random.Random(self.num_requests)
        lengths = [rng.randint(self.shortest, self.longest) for _ in range(self.num_requests)]
        return [[rng.randrange(1000, 40_000) for _ in range(length)] for length in lengths]


CASES = {
    case.label: case
    for case in (
        Case("1", 1, 24, 320, 48),
        Case("16", 16, 24, 320, 48),
        Case("64", 64, 24, 320, 48),
        Case("prefill", 1, 512, 512, 1),
        Case("8+long", 8, 24, 320, 96, late=True),
    )
}


class Clock:
    """
    When the tokens of each stream came, from the moment when all were sent.

    Gaps are those between two neighbouring tokens of one stream, the wait for its first token left out.
    """

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._last: dict[int, float] = {}
        self._first: list[float] = []
        self._gaps: list[float] = []

    def tokens(self, streams: Iterable[int]) -> None:
        """Note one more token for each of `streams`."""
        now = time.perf_counter() - self._started
        for stream in streams:
            if stream in self._last:
                self._gaps.append(now - self._last[stream])
            else:
                self._first.append(now)
            self._last[stream] = now

    def summary(self, case: Case) -> Figures:
        """Return tokens_per_s over the whole, prompt_tokens_per_s to the last first token, first_p50_s and the gaps in ms."""
        num_tokens = len(self._first) + len(self._gaps)
        if num_tokens != case.num_requests * case.num_out:
            sys.exit(f"case {case.label} gave {num_tokens} tokens, not {case.num_requests} x {case.num_out}")
        figures = {
            "tokens_per_s": num_tokens / max(self._last.values()),
            "prompt_tokens_per_s": sum(map(len, case.prompts)) / max(self._first),
            "first_p50_s": statistics.median(self._first),
        }
        if self._gaps:
            gaps = sorted(self._gaps)
            figures["gap_p50_ms"] = 1000 * statistics.median(gaps)
            figures["gap_p99_ms"] = 1000 * gaps[int(0.99 * (len(gaps) - 1))]
        return figures


def late_prompt(number: int) -> list[int]:
    """Return 1,024 random token ids, others for each number."""
    rng = random.Random(-number)
    return [rng.randrange(1000, 40_000) for _ in range(1024)]


def ascendd(artefact: Path, weight_dtype: str) -> Run:
    """Return what runs a case on our engine's core."""
    import torch

    from ascendd.config.model_facts import read_model_facts
    from ascendd.config.resolve import resolve
    from ascendd.config.schema import EngineSection, InstanceConfig, ModelSection
    from ascendd.device.cpu import CpuDevice
    from ascendd.engine.core import EngineCore
    from ascendd.engine.exec.executor import InProcessExecutor
    from ascendd.engine.runner.model_runner import ModelRunner
    from ascendd.ipc.messages import AddSequence, SamplingParams

    torch.set_num_threads(NUM_THREADS)
    facts, device = read_model_facts(artefact), CpuDevice()
    config = InstanceConfig(
        model=ModelSection(path=str(artefact), dtype="float32", max_model_len=MAX_LEN),
        engine=EngineSection(enable_prefix_caching=False, weight_dtype=weight_dtype, kv_cache_memory="1GiB"),  # type: ignore[arg-type]
    )
    resolved = resolve(config, facts, device.facts)
    core = EngineCore(resolved, InProcessExecutor(ModelRunner(resolved, facts, device)), ())
    core.warm_up()

    def run(case: Case) -> Figures:
        prompts, clock, num_tokens = case.prompts, Clock(), 0
        for index, prompt in enumerate(prompts):
            core.add(
                AddSequence(index, prompt, SamplingParams(max_tokens=case.num_out, temperature=0, ignore_eos=True))
            )
        late = case.num_requests
        while num_tokens < case.num_requests * case.num_out:
            started = num_tokens >= case.num_requests
            if case.late and started and core.num_waiting == 0 and core.num_running <= case.num_requests:
                late += 1
                core.add(AddSequence(late, late_prompt(late), SamplingParams(max_tokens=1, temperature=0)))
            output = core.step()
            streams = [] if output is None else [seq_id for seq_id in output.seq_ids if seq_id < case.num_requests]
            num_tokens += len(streams)
            clock.tokens(streams)
        core.abort_all()
        return clock.summary(case)

    return run


def transformers(gguf: Path, _weights: str) -> Run:
    """Return what runs a case on transformers' generate(), prompts padded to the longest."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.generation import LogitsProcessor, LogitsProcessorList

    torch.set_num_threads(NUM_THREADS)

    class Noting(LogitsProcessor):
        """Tells the clock of each step and changes no logits."""

        def __init__(self, clock: Clock, count: int) -> None:
            self._clock, self._count = clock, count

        def __call__(self, _input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            """Note that each row has a token."""
            self._clock.tokens(range(self._count))
            return scores

    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32).eval()

    def run(case: Case) -> Figures:
        prompts = case.prompts
        width = max(map(len, prompts))
        token_ids = torch.tensor([[2] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        clock = Clock()
        with torch.inference_mode():
            model.generate(
                token_ids,
                attention_mask=mask,
                max_new_tokens=case.num_out,
                min_new_tokens=case.num_out,
                do_sample=False,
                pad_token_id=2,
                logits_processor=LogitsProcessorList([Noting(clock, case.num_requests)]),
            )
        return clock.summary(case)

    return run


def llama_cpp(gguf: Path, weights: str, folder: Path) -> Run:
    """Return what answers one prompt with llama.cpp, from a file of that weight format which it makes itself."""
    import llama_cpp

    made = folder / f"{gguf.stem}.{weights}.gguf"
    if not made.exists():
        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype, params.allow_requantize = {"fp32": 0, "fp16": 1, "q8_0": 7}[weights], True  # llama_ftype, llama.h
        partial = made.with_suffix(".partial")
        if llama_cpp.llama_model_quantize(str(gguf).encode(), str(partial).encode(), ctypes.byref(params)):
            sys.exit(f"llama.cpp makes no {weights} of {gguf}")
        partial.rename(made)
    model = llama_cpp.Llama(str(made), n_ctx=MAX_LEN, n_threads=NUM_THREADS, n_threads_batch=NUM_THREADS, verbose=False)

    def run(case: Case) -> Figures:
        (prompt,) = case.prompts
        model.reset()
        clock = Clock()
        for number, _ in enumerate(model.generate(prompt, temp=0.0, top_k=1), 1):
            clock.tokens([0])
            if number == case.num_out:
                break
        return clock.summary(case)

    return run


def vllm(model: Path) -> Run:
    """Return what runs a case on vLLM's engine, in this process, as it comes: compiled, threads on all cores."""
    from vllm import SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(model),
            dtype="float32",
            max_model_len=MAX_LEN,
            max_num_seqs=64,
            kv_cache_memory_bytes=2**30,
            enable_prefix_caching=False,
            generation_config="vllm",
            disable_log_stats=True,
        )
    )

    def add(number: int, prompt: list[int], num_out: int) -> None:
        params = SamplingParams(max_tokens=num_out, temperature=0, ignore_eos=True, detokenize=False)
        engine.add_request(str(number), {"prompt_token_ids": prompt}, params)

    def run(case: Case) -> Figures:
        prompts, clock, num_tokens = case.prompts, Clock(), 0
        for index, prompt in enumerate(prompts):
            add(index, prompt, case.num_out)
        late, seen, num_late = case.num_requests, [0] * case.num_requests, 0
        while num_tokens < case.num_requests * case.num_out:
            if case.late and num_tokens >= case.num_requests and num_late == 0:
                late, num_late = late + 1, 1
                add(late, late_prompt(late), 1)
            streams = []
            for output in engine.step():
                index = int(output.request_id)
                if index >= case.num_requests:
                    num_late = 0
                    continue
                new = len(output.outputs[0].token_ids) - seen[index]
                seen[index] += new
                streams += [index] * new
            num_tokens += len(streams)
            clock.tokens(streams)
        while engine.has_unfinished_requests():
            engine.step()
        return clock.summary(case)

    return run


def machine() -> Run:
    """Return what measures the limits: GB/s of reading memory and GFLOP/s of float32, the best of some, all cores."""
    import torch

    torch.set_num_threads(NUM_THREADS)
    block, matrix = torch.ones(64 * 2**20), torch.ones(1024, 1024)

    def best(work: Callable[[], object], amount: float) -> float:
        times = []
        for _ in range(6):
            started = time.perf_counter()
            work()
            times.append(time.perf_counter() - started)
        return amount / min(times) / 1e9

    def run(_case: Case) -> Figures:
        return {"gb_per_s": best(block.sum, block.nbytes), "gflop_per_s": best(lambda: matrix @ matrix, 2 * 1024**3)}

    return run


def hugging_face(artefact: Path, gguf: Path, folder: Path) -> None:
    """Write the model where vLLM can read it: float32 of GGUF, described as by the artefact. Needs transformers."""
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    if (folder / "model.safetensors").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype="float32")
    weights = {name: w.contiguous() for name, w in model.state_dict().items() if name != "lm_head.weight"}
    for part in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / part).write_bytes((artefact / part).read_bytes())
    save_file(weights, folder / "partial", metadata={"format": "pt"})
    (folder / "partial").rename(folder / "model.safetensors")


def main(name: str, artefact: Path, gguf: Path, folder: Path) -> None:
    """Load a side and answer."""
    begun, answers = time.perf_counter(), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a peer prints must not come between the answers
    engine, _, weights = name.partition(" ")
    package = {"llama.cpp": "llama-cpp-python", "machine": "torch"}.get(engine, engine)
    if engine == "model":
        hugging_face(artefact, gguf, folder / "model")
        return
    if engine == "ascendd":
        run = ascendd(artefact, {"fp32": "float32", "fp16": "float16", "int8": "int8"}[weights])
    elif engine == "transformers":
        run = transformers(gguf, weights)
    elif engine == "llama.cpp":
        run = llama_cpp(gguf, weights, folder)
    else:
        run = vllm(folder / "model") if engine == "vllm" else machine()
    hello = {"version": importlib.metadata.version(package), "load_s": time.perf_counter() - begun}
    answers.write(json.dumps(hello) + "\n")
    answers.flush()
    for line in sys.stdin:
        answers.write(json.dumps(run(CASES[line.strip()])) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:5]))
