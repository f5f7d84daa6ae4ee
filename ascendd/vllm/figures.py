"""
vLLM's page of metrics: what of it is shown beside ours, and what it says in our names. Pure.

Names: https://docs.vllm.ai/en/stable/usage/metrics/ (V1). A name that this vLLM lacks is left out, not taken for 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ascendd.ipc.messages import Sample

# The page of a vLLM with many adapters has some hundred kilobytes; more than this is not passed on.
MAX_BYTES = 4 * 1024 * 1024
_LINE = re.compile(r"^(vllm:\w+)(?:\{(.*)\})? (\S+)", re.ASCII)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"', re.ASCII)
_SOURCES: tuple[tuple[str, tuple[str, ...], Callable[[Sequence[float]], float]], ...] = (
    ("ascendd_engine_sequences_running", ("vllm:num_requests_running",), sum),
    ("ascendd_engine_sequences_waiting", ("vllm:num_requests_waiting",), sum),
    ("ascendd_engine_kv_usage_ratio", ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"), max),
    ("ascendd_engine_prompt_tokens_total", ("vllm:prompt_tokens_total",), sum),
    ("ascendd_engine_generation_tokens_total", ("vllm:generation_tokens_total",), sum),
    ("ascendd_engine_preemptions_total", ("vllm:num_preemptions_total",), sum),
    ("ascendd_engine_prefix_cache_queries_total", ("vllm:prefix_cache_queries_total",), sum),
    ("ascendd_engine_prefix_cache_hits_total", ("vllm:prefix_cache_hits_total",), sum),
    ("ascendd_engine_steps_total", ("vllm:iteration_tokens_total_count",), sum),
)


@dataclass(frozen=True)
class Figures:
    """One page. `text` has vLLM's own families only; `num_blocks` and `block_size` are None where it does not tell."""

    text: bytes
    samples: tuple[Sample, ...]
    num_running: int
    num_waiting: int
    # Grows with every token of a prompt and of an answer.
    num_tokens: float
    num_blocks: int | None = None
    block_size: int | None = None


def read_figures(page: bytes) -> Figures:
    """Read `page`, Prometheus' text format; lines that are none of vLLM's are left out."""
    lines = [line for line in page[:MAX_BYTES].decode("utf-8", "replace").splitlines() if _is_own(line)]
    values: dict[str, list[float]] = {}
    config: dict[str, str] = {}
    for name, labels, value in _values(lines):
        values.setdefault(name, []).append(value)
        if name == "vllm:cache_config_info":
            config = dict(_LABEL.findall(labels))
    samples = [
        Sample(ours, join(values[theirs]))
        for ours, names, join in _SOURCES
        if (theirs := next((name for name in names if name in values), None)) is not None
    ]
    told = {sample.name: sample.value for sample in samples}
    num_blocks, block_size = _number(config.get("num_gpu_blocks")), _number(config.get("block_size"))
    if num_blocks is not None:
        used = round(told.get("ascendd_engine_kv_usage_ratio", 0.0) * num_blocks)
        samples += [
            Sample("ascendd_engine_kv_blocks", float(num_blocks)),
            Sample("ascendd_engine_kv_blocks_used", float(used)),
        ]
    return Figures(
        text=("\n".join(lines) + "\n").encode() if lines else b"",
        samples=tuple(samples),
        num_running=int(told.get("ascendd_engine_sequences_running", 0)),
        num_waiting=int(told.get("ascendd_engine_sequences_waiting", 0)),
        num_tokens=sum(told.get(f"ascendd_engine_{kind}_tokens_total", 0.0) for kind in ("prompt", "generation")),
        num_blocks=num_blocks,
        block_size=block_size,
    )


def _is_own(line: str) -> bool:
    return line.startswith(("vllm:", "# HELP vllm:", "# TYPE vllm:"))


def _values(lines: list[str]) -> Iterator[tuple[str, str, float]]:
    for line in lines:
        if (match := _LINE.match(line)) is not None:
            try:
                yield match[1], match[2] or "", float(match[3])
            except ValueError:
                continue


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
