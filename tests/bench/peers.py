"""
Our engine beside the peers that are installed: one table, interleaved rounds, medians, and the machine's own limit.

    python tests/bench/peers.py ARTEFACT GGUF [--llama-python VENV/bin/python] [--rounds 3] [--record docs/benchmarks]

transformers runs in this environment, llama-cpp-python in the one that is named; a peer that is not there has no row.
Every side is a process of its own that stays loaded; prompts and lengths are those of against_transformers.py. llama.cpp
makes its fp32, fp16 and q8_0 files from GGUF itself and is asked for one request at a time. With --record the table is
kept as COMMIT.json and COMMIT.svg. Ratios hold within one run only.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import against_transformers as common

LLAMA_TYPES = {"fp32": 0, "fp16": 1, "q8_0": 7}  # enum llama_ftype of llama.h
WEIGHT_BYTES = {"fp32": 4, "fp16": 2, "int8": 1, "q8_0": 34 / 32}
BATCHES = (1, 16)


def llama(gguf: Path, weights: str) -> Callable[[int], float]:
    """Return a function that answers one prompt with llama.cpp and gives output tokens per second."""
    import ctypes

    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = LLAMA_TYPES[weights], True
    made = Path(tempfile.mkdtemp()) / "model.gguf"
    if llama_cpp.llama_model_quantize(str(gguf).encode(), str(made).encode(), ctypes.byref(params)):
        sys.exit(f"llama.cpp makes no {weights} of {gguf}")
    model = llama_cpp.Llama(str(made), n_ctx=1024, n_threads=2, n_threads_batch=2, verbose=False)
    made.unlink()

    def run(count: int) -> float:
        (prompt,) = common.prompts(count)
        model.reset()
        started = time.perf_counter()
        for number, _ in enumerate(model.generate(prompt, temp=0.0, top_k=1), 1):
            if number == common.NUM_OUT:
                break
        return common.NUM_OUT / (time.perf_counter() - started)

    return run


def bandwidth(_count: int) -> float:
    """Return GB/s of reading memory with two threads, best of some."""
    import torch

    block, best = torch.ones(64 * 2**20), 0.0
    for _ in range(5):
        started = time.perf_counter()
        block.sum()
        best = max(best, block.numel() * 4 / (time.perf_counter() - started) / 1e9)
    return best


def side(name: str, artefact: Path, gguf: Path) -> None:
    """Serve one side over pipes: a batch size in, a number out."""
    engine, _, weights = name.partition(" ")
    run: Callable[[int], float]
    if engine == "llama.cpp":
        run = llama(gguf, weights)
    else:
        import torch

        torch.set_num_threads(2)
        if engine == "ascendd":
            run = common.ours(artefact, weights)
        else:
            run = common.theirs(gguf) if engine == "transformers" else bandwidth
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run(int(line))) + "\n")
        sys.stdout.flush()


def plot(rows: list[dict[str, object]]) -> str:
    """Return an SVG of bars: output tokens per second of each side and batch."""
    most = max(float(str(row["tokens_per_s"])) for row in rows)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="760" height="{24 * len(rows) + 12}" font-family="sans-serif">'
    ]
    for number, row in enumerate(rows):
        value, top = float(str(row["tokens_per_s"])), 24 * number + 8
        colour = "#c7372f" if str(row["side"]).startswith("ascendd") else "#8a8f98"
        lines += [
            f'<text x="0" y="{top + 13}" font-size="13">{row["side"]}, {row["requests"]}</text>',
            f'<rect x="180" y="{top}" width="{500 * value / most:.0f}" height="16" fill="{colour}"/>',
            f'<text x="{186 + 500 * value / most:.0f}" y="{top + 13}" font-size="13">{value:.1f}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    """Alternate the sides and print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artefact", type=Path)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--llama-python", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        side(args.side, args.artefact, args.gguf)
        return
    from ascendd.config.model_facts import read_model_facts

    names = ["memory", "ascendd fp32", "ascendd fp16", "ascendd int8", "transformers fp32"]
    names += [f"llama.cpp {weights}" for weights in LLAMA_TYPES] if args.llama_python else []
    sides = {
        name: subprocess.Popen(
            [str(args.llama_python if name.startswith("llama") else sys.executable), __file__, str(args.artefact),
             str(args.gguf), "--side", name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={"PATH": "/usr/bin:/bin", "GOMP_SPINCOUNT": "100000"},
        )
        for name in names
    }  # fmt: skip

    def ask(name: str, count: int) -> float:
        process = sides[name]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{count}\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            sys.exit(f"{name} ended with {process.wait()}; run it by hand with --side '{name}'")
        return float(json.loads(answer))

    for name in names:
        ask(name, 1)
    rows: list[dict[str, object]] = []
    num_parameters = read_model_facts(args.artefact).num_parameters
    print(
        f"{'requests':>8}  {'side':<18} {'tok/s':>7} {'rounds':<24} {'of transformers':>15} {'of the memory limit':>19}"
    )
    for count in BATCHES:
        taking_part = [name for name in names if count == 1 or not name.startswith("llama")]
        found: dict[str, list[float]] = {name: [] for name in taking_part}
        for _ in range(args.rounds):
            for name in taking_part:
                found[name].append(ask(name, count))
        medians = {name: statistics.median(values) for name, values in found.items()}
        gigabytes_per_s = max(found["memory"])
        for name in taking_part[1:]:
            ratio = statistics.median(a / b for a, b in zip(found[name], found["transformers fp32"], strict=True))
            per_token = num_parameters * WEIGHT_BYTES[name.split()[1]] / 1e9
            share = medians[name] * per_token / gigabytes_per_s if count == 1 else None
            rounds = " ".join(f"{value:.1f}" for value in found[name])
            limit = "-" if share is None else f"{share:.0%} of {gigabytes_per_s:.0f} GB/s"
            print(f"{count:>8}  {name:<18} {medians[name]:>7.1f} {rounds:<24} {ratio:>14.2f}x {limit:>19}", flush=True)
            rows.append({
                "requests": count, "side": name, "tokens_per_s": round(medians[name], 2), "rounds": found[name],
                "ratio_to_transformers": round(ratio, 3), "memory_gb_per_s": round(gigabytes_per_s, 2),
            })  # fmt: skip
    for process in sides.values():
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
    if args.record:
        git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        args.record.mkdir(parents=True, exist_ok=True)
        record = {"cores": os.cpu_count(), "rows": rows}
        (args.record / f"{git.stdout.strip()}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        (args.record / f"{git.stdout.strip()}.svg").write_text(plot(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
