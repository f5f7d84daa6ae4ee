"""`ascendd plan MODEL`: how the memory of a device would be used, line by line, before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ascendd.config.model_facts import ModelFacts
    from ascendd.config.plan import DeviceFacts
    from ascendd.config.resolve import EngineConfig

USAGE = """Usage: ascendd plan MODEL [flags of `ascendd serve`] [--device-memory SIZE] [--reserve SIZE] [--json]

Show how weights, KV cache and reserve share the memory of one device; exit 66 where they do not fit.
MODEL is a folder, or a config.json alone. Nothing is loaded; weights are counted in their files where there are any.

  --device-memory SIZE
        plan for an NPU with this much memory, all of it free, instead of for this machine
  --reserve SIZE
        keep this much for activations and the runtime and use all the rest; without it a tenth is left alone as well
  --json
        print JSON

Flags of serve that change the plan: --dtype, --kv-cache-dtype, --block-size, --max-model-len, --max-num-seqs,
--tensor-parallel-size, --pipeline-parallel-size, and one of --max-num-blocks, --kv-cache-memory and
--gpu-memory-utilization."""


class Line(NamedTuple):
    """One row: what, how much, and the sum it comes from."""

    label: str
    value: str
    how: str


def register(app: typer.Typer) -> None:
    """Add the verb to `app`."""

    @app.command(
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    )
    def plan(context: typer.Context) -> None:
        """Show how the memory of a device would be used: ascendd plan MODEL [flags of serve]."""
        args = [*context.args]
        if any(arg in ("--help", "-h") for arg in args):
            print(USAGE)
            return
        as_json = "--json" in args
        facts, device, engine = _plan([arg for arg in args if arg != "--json"])
        if as_json:
            print(json.dumps(_figures(facts, device, engine), indent=2))
        else:
            _print(list(_lines(facts, device, engine)))


def _plan(args: list[str]) -> tuple[ModelFacts, DeviceFacts, EngineConfig]:
    from ascendd.artefact.weight_count import count_rank_weights
    from ascendd.cli.serve import build_config
    from ascendd.config.model_facts import read_model_facts
    from ascendd.config.resolve import resolve
    from ascendd.errors import UsageError

    memory, reserve = _take_size(args, "--device-memory"), _take_size(args, "--reserve")
    if not args:
        raise UsageError("plan needs the folder of a model: ascendd plan MODEL")
    config, _notes = build_config(args)
    path = Path(config.model.path)
    folder = path.parent if path.name == "config.json" and path.is_file() else path
    facts = read_model_facts(folder)
    # Whoever names config.json itself asks about the configuration, whatever lies beside it.
    sizes = config.parallel.tensor_parallel_size, config.parallel.pipeline_parallel_size
    elements = None if folder != path else count_rank_weights(folder, facts, *sizes)
    device = _this_device(config.engine.device) if memory is None else _npu_of(memory)
    return facts, device, resolve(config, facts, device, weight_elements=elements, reserve_bytes=reserve)


def _take_size(args: list[str], name: str) -> int | None:
    """Remove `name SIZE` or `name=SIZE` from `args` and return the bytes."""
    from ascendd.config.quantity import parse_bytes
    from ascendd.errors import UsageError

    for index, arg in enumerate(args):
        if arg == name or arg.startswith(f"{name}="):
            args.pop(index)
            if arg == name and index == len(args):
                raise UsageError(f"{name} needs a size, such as {name} 2GiB")
            text = args.pop(index) if arg == name else arg.partition("=")[2]
            try:
                return parse_bytes(int(text) if text.isdecimal() else text)
            except ValueError as error:
                raise UsageError(f"{name}: {error}") from None
    return None


def _this_device(kind: str) -> DeviceFacts:
    from ascendd.device.detect import make_device

    return make_device(kind).facts


def _npu_of(size: int) -> DeviceFacts:
    from ascendd.config.plan import DeviceFacts
    from ascendd.config.quantity import format_bytes

    return DeviceFacts(
        kind="npu",
        name=f"an NPU with {format_bytes(size)}",
        total_bytes=size,
        free_bytes=size,
        fast_dtypes=("float16", "bfloat16", "float32"),
        block_sizes=(128, 64, 32, 16),
    )


def _lines(facts: ModelFacts, device: DeviceFacts, engine: EngineConfig) -> Iterator[Line]:
    """Yield the rows; every figure with the sum it comes from."""
    from ascendd.config.plan import DTYPE_BYTES, kv_arithmetic
    from ascendd.config.quantity import format_bytes

    plan, ranks = engine.plan, engine.tensor_parallel_size * engine.pipeline_parallel_size
    weight_size, kv_size = DTYPE_BYTES[engine.dtype], DTYPE_BYTES[engine.kv_cache_dtype]
    counted = plan.weights_origin != "config.json"
    weights = f"{plan.weights_bytes // weight_size:,} " + (f"in {plan.weights_origin}" if counted else "parameters")
    share = f" (1 of {ranks} ranks)" if ranks > 1 else ""
    if ranks > 1 and facts.num_replicated_parameters:
        share = f" (1 of {ranks} ranks, {facts.num_replicated_parameters:,} of them whole on each)"
    blocks = -(-engine.max_model_len // plan.block_size)
    yield Line("model", f"{facts.num_parameters:,}", f"parameters, {facts.architecture}, {facts.dtype} on disk")
    yield Line("device", format_bytes(device.total_bytes), f"{format_bytes(device.free_bytes)} free, {device.name}")
    yield Line("dtype", engine.dtype, f"{_origin(engine, 'dtype')}; KV cache {engine.kv_cache_dtype}")
    shared = f"per rank; {ranks} share this host" if ranks > 1 and device.kind == "cpu" else "per device"
    yield Line("usable", format_bytes(plan.budget_bytes), shared)
    weights = f"{plan.weights_sum}{share}" if plan.weights_sum else f"{weights}{share} x {weight_size} bytes"
    yield Line("- weights", format_bytes(plan.weights_bytes), weights)
    yield Line("- reserve", format_bytes(plan.reserve_bytes), f"{plan.reserve_origin}; activations, logits, runtime")
    yield Line("= room for KV", format_bytes(plan.room_bytes), f"{plan.num_fitting:,} blocks fit")
    yield Line(
        "KV per token",
        f"{plan.bytes_per_token:,} bytes",
        kv_arithmetic(facts, engine.tensor_parallel_size, kv_size, engine.pipeline_parallel_size),
    )
    yield Line(
        "KV per block",
        f"{plan.bytes_per_block:,} bytes",
        f"{plan.block_size} tokens x {plan.bytes_per_token:,} bytes",
    )
    first_use = "; taken from the host page by page with first use" if device.kind == "cpu" else ""
    yield Line("KV blocks", f"{plan.num_blocks:,}", f"{format_bytes(plan.kv_bytes)}; {plan.origin}{first_use}")
    yield Line("tokens", f"{plan.num_tokens:,}", f"{plan.num_blocks:,} blocks x {plan.block_size} tokens")
    yield Line(
        "sequences",
        f"{plan.num_blocks // blocks:,}",
        f"of {engine.max_model_len:,} tokens ({blocks:,} blocks each) at once; max_num_seqs {engine.max_num_seqs:,}",
    )


def _origin(engine: EngineConfig, key: str) -> str:
    return "as asked for" if engine.origins[key] == "file" else engine.origins[key]


def _print(lines: list[Line]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for line in lines:
        table.add_row(*line)
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 200  # a file or a pipe has no edge to wrap at
    console.print(table)


def _figures(facts: ModelFacts, device: DeviceFacts, engine: EngineConfig) -> dict[str, object]:
    """Return the same as plain numbers, sizes in bytes; all per device but the first two."""
    plan = engine.plan
    return {
        "architecture": facts.architecture,
        "num_parameters": facts.num_parameters,
        "tensor_parallel_size": engine.tensor_parallel_size,
        "pipeline_parallel_size": engine.pipeline_parallel_size,
        "device": device.kind,
        "device_total_bytes": device.total_bytes,
        "device_free_bytes": device.free_bytes,
        "dtype": engine.dtype,
        "kv_cache_dtype": engine.kv_cache_dtype,
        "usable_bytes": plan.budget_bytes,
        "weights_bytes": plan.weights_bytes,
        "weights_origin": plan.weights_origin,
        "reserve_bytes": plan.reserve_bytes,
        "reserve_origin": plan.reserve_origin,
        "kv_room_bytes": plan.room_bytes,
        "num_fitting_blocks": plan.num_fitting,
        "bytes_per_token": plan.bytes_per_token,
        "bytes_per_block": plan.bytes_per_block,
        "block_size": plan.block_size,
        "num_blocks": plan.num_blocks,
        "num_blocks_origin": plan.origin,
        "kv_cache_bytes": plan.kv_bytes,
        "num_tokens": plan.num_tokens,
        "max_model_len": engine.max_model_len,
        "max_num_seqs": engine.max_num_seqs,
        "num_full_sequences": plan.num_blocks // -(-engine.max_model_len // plan.block_size),
    }
