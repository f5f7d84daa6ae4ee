"""`ascendd inspect`: what a converted model, a Hugging Face folder or a GGUF file holds."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ascendd.artefact.inspection import Inspection

_PIPED_WIDTH = 1000


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""

    @app.command()
    def inspect(
        model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a model, or a .gguf file.")],
        verify: Annotated[bool, typer.Option("--verify", help="Read every file and compare its SHA-256.")] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Show what a model holds: architecture, fused operators, dtype, ranks, checksums."""
        import msgspec

        from ascendd.artefact.inspection import inspect_model
        from ascendd.cli.progress_lines import ProgressLines
        from ascendd.errors import WeightsCorrupt

        with ProgressLines() as lines:
            found = inspect_model(
                model, verify=verify, progress=lambda done, total: lines.show("verifying", done, total)
            )
        if as_json:
            sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
        else:
            _print(found, verify)
        if found.verified:
            listed = "; ".join(f"{name}: {problem}" for name, problem in found.verified.items())
            raise WeightsCorrupt(f"{model} is damaged: {listed}", remedy="Convert or copy the model again.")


def _print(found: Inspection, verify: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for label, value in _rows(found, verify):
        table.add_row(label, value)
    # Piped output is not folded: one line per fact, whatever its length.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPED_WIDTH)
    console.print(table)


def _rows(found: Inspection, verify: bool) -> list[tuple[str, str]]:
    from ascendd.config.quantity import format_bytes

    kinds = {
        "artefact": "converted by ascendd",
        "huggingface": "Hugging Face folder, not converted; it is fused and cut at each start",
        "gguf": "GGUF file, not converted; `ascendd convert` makes it servable",
    }
    rows = [
        ("model", found.path),
        ("kind", kinds[found.kind]),
        ("architecture", found.architecture),
        ("parameters", f"{found.num_parameters:,}"),
        ("layers", f"{found.num_layers}, hidden size {found.hidden_size}"),
        ("heads", f"{found.num_heads}, {_cached(found)}"),
        *([("experts", f"{found.num_experts}")] if found.num_experts is not None else []),
        ("vocabulary", f"{found.vocab_size:,}"),
        ("context", f"{found.context_length:,} tokens"),
        ("dtype", found.dtype),
    ]
    if found.quantisation:
        counts = ", ".join(f"{name} ({count} tensors)" for name, count in sorted(found.quantisation.items()))
        rows.append(("quantised source" if found.kind == "artefact" else "quantised", counts))
    if found.tensor_parallel_size is not None:
        rows.append(("fused operators", ", ".join(found.fused_operators)))
        rows.append(("tensor parallel", str(found.tensor_parallel_size)))
    total = sum(found.weight_files.values())
    rows.append(("weights", f"{format_bytes(total)} in {_files(len(found.weight_files))}"))
    for name, num_bytes in found.weight_files.items():
        rows.append(("", f"{name}  {num_bytes:,} bytes{_verdict(found, name)}"))
    rows.append(("checksums", _checksums(found, verify)))
    rows.append(("tokenizer", "tokenizer.json" if found.tokenizer else "none: text cannot be served without one"))
    if found.cast_report:
        rows.append(("float16 cast", _cast(found)))
    if found.source is not None:
        rows.append(("source", found.source))
    if found.created_unix_s is not None:
        made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(found.created_unix_s))
        rows.append(("converted", f"{made} by ascendd {found.ascendd_version}"))
    return rows


def _cached(found: Inspection) -> str:
    if found.latent_dim is not None:
        return f"all K and V out of a latent of {found.latent_dim}"
    return f"KV heads {found.num_kv_heads}"


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


def _verdict(found: Inspection, name: str) -> str:
    if found.verified is None:
        return ""
    return "  BAD" if name in found.verified else "  ok"


def _checksums(found: Inspection, verify: bool) -> str:
    if found.kind != "artefact":
        return "none are recorded before conversion; headers and sizes agree"
    if found.verified is None:
        return f"recorded for {_files(len(found.checksums))}, sizes agree; --verify reads them"
    if found.verified:
        return f"BAD: {', '.join(found.verified)}"
    return f"ok, {_files(len(found.checksums))} read"


def _cast(found: Inspection) -> str:
    counts = found.cast_report.values()
    overflow, zero = sum(count.overflow for count in counts), sum(count.zero for count in counts)
    subnormal = sum(count.subnormal for count in counts)
    cut = f"{overflow:,} values cut to 65504, " if found.clamped else ""
    return f"{cut}{subnormal:,} values lost precision, {zero:,} became 0, in {len(counts)} tensors"
