"""`ascendd plan MODEL`: how the memory of a device would be used, line by line, before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ascendd.config.model_facts import ModelFacts
    from ascendd.config.plan import DeviceFacts
    from ascendd.config.resolve import EngineConfig

USAGE = """Usage: ascendd plan MODEL [flags of `ascendd serve`] [--device-memory SIZE] [--json]

Show how weights, KV cache and reserve share the memory of one device; exit 66 where they do not fit.
Nothing is loaded: config.json is enough.

  --device-memory SIZE
        plan for an NPU with this much memory, all of it free, instead of for this machine
  --json
        print JSON"""


def register(app: typer.Typer) -> None:
    """Add the verb to `app`."""

    @app.command(
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    )
    def plan(context: typer.Context) -> None:
        """Show how the memory of a device would be used: ascendd plan MODEL [flags of serve]."""
        from ascendd.cli.serve import build_config
        from ascendd.config.model_facts import read_model_facts
        from ascendd.config.resolve import resolve
        from ascendd.errors import UsageError

        args = [*context.args]
        if any(arg in ("--help", "-h") for arg in args):
            print(USAGE)
            return
        as_json = "--json" in args
        args = [arg for arg in args if arg != "--json"]
        memory = _take_option(args, "--device-memory")
        if not args:
            raise UsageError("plan needs the folder of a model: ascendd plan MODEL")
        config, _notes = build_config(args)
        device = _this_device(config.engine.device) if memory is None else _npu_of(memory)
        facts = read_model_facts(Path(config.model.path))
        engine = resolve(config, facts, device)
        if as_json:
            print(json.dumps(dict(_figures(facts, device, engine)), indent=2))
        else:
            for label, text in _lines(facts, device, engine):
                print(f"{label:14}{text}")


def _take_option(args: list[str], name: str) -> str | None:
    """Remove `name VALUE` or `name=VALUE` from `args` and return the value."""
    from ascendd.errors import UsageError

    for index, arg in enumerate(args):
        if arg.startswith(f"{name}="):
            return args.pop(index).partition("=")[2]
        if arg == name:
            if index + 1 == len(args):
                raise UsageError(f"{name} needs a size, such as {name} 32GiB")
            args.pop(index)
            return args.pop(index)
    return None


def _this_device(kind: str) -> DeviceFacts:
    from ascendd.device.detect import make_device

    return make_device(kind).facts


def _npu_of(memory: str) -> DeviceFacts:
    from ascendd.config.plan import DeviceFacts
    from ascendd.config.quantity import format_bytes, parse_bytes
    from ascendd.errors import UsageError

    try:
        size = parse_bytes(int(memory) if memory.isdecimal() else memory)
    except ValueError as error:
        raise UsageError(f"--device-memory: {error}") from None
    fast = ("float16", "bfloat16", "float32")
    return DeviceFacts(
        kind="npu", name=f"an NPU with {format_bytes(size)}", total_bytes=size, free_bytes=size, fast_dtypes=fast
    )


def _lines(facts: ModelFacts, device: DeviceFacts, engine: EngineConfig) -> Sequence[tuple[str, str]]:
    """Return label and text of each line; every figure with the sum it comes from."""
    from ascendd.config.plan import DTYPE_BYTES, kv_arithmetic
    from ascendd.config.quantity import format_bytes

    plan, ranks = engine.plan, engine.tensor_parallel_size
    weight_size, kv_size = DTYPE_BYTES[engine.dtype], DTYPE_BYTES[engine.kv_cache_dtype]
    per_rank = f" / {ranks} ranks" if ranks > 1 else ""
    if ranks > 1 and facts.num_replicated_parameters:
        per_rank += f" ({facts.num_replicated_parameters:,} of them whole on each)"
    room = plan.budget_bytes - plan.weights_bytes - plan.reserve_bytes
    full_length = plan.num_blocks // -(-engine.max_model_len // plan.block_size)
    return (
        ("model", f"{facts.architecture}, {facts.num_parameters:,} parameters, {facts.dtype} on disk"),
        ("device", f"{device.name}: {format_bytes(device.total_bytes)}, {format_bytes(device.free_bytes)} free"),
        ("dtype", f"{engine.dtype} ({engine.origins['dtype']})"),
        ("usable", format_bytes(plan.budget_bytes)),
        (
            "- weights",
            f"{format_bytes(plan.weights_bytes)} = {facts.num_parameters:,} parameters{per_rank} x {weight_size} bytes",
        ),
        ("- reserve", f"{format_bytes(plan.reserve_bytes)} for activations, logits and the runtime itself"),
        ("= room for KV", f"{format_bytes(room)} = {room // plan.bytes_per_block:,} blocks"),
        (
            "KV per token",
            f"{plan.bytes_per_token:,} bytes = {kv_arithmetic(facts, ranks, kv_size)}",
        ),
        ("KV per block", f"{plan.bytes_per_block:,} bytes = {plan.block_size} tokens x {plan.bytes_per_token:,} bytes"),
        ("KV cache", f"{plan.num_blocks:,} blocks = {format_bytes(plan.kv_bytes)} ({plan.origin})"),
        ("holds", f"{plan.num_tokens:,} tokens: {full_length:,} sequences of {engine.max_model_len:,} tokens at once"),
    )


def _figures(facts: ModelFacts, device: DeviceFacts, engine: EngineConfig) -> Sequence[tuple[str, object]]:
    """Return the same as plain numbers, sizes in bytes."""
    plan = engine.plan
    return (
        ("architecture", facts.architecture),
        ("num_parameters", facts.num_parameters),
        ("device", device.kind),
        ("device_total_bytes", device.total_bytes),
        ("device_free_bytes", device.free_bytes),
        ("dtype", engine.dtype),
        ("kv_cache_dtype", engine.kv_cache_dtype),
        ("usable_bytes", plan.budget_bytes),
        ("weights_bytes", plan.weights_bytes),
        ("reserve_bytes", plan.reserve_bytes),
        ("bytes_per_token", plan.bytes_per_token),
        ("bytes_per_block", plan.bytes_per_block),
        ("block_size", plan.block_size),
        ("num_blocks", plan.num_blocks),
        ("num_blocks_origin", plan.origin),
        ("kv_cache_bytes", plan.kv_bytes),
        ("num_tokens", plan.num_tokens),
        ("max_model_len", engine.max_model_len),
    )
