"""`ascendd convert`: a Hugging Face folder or a GGUF file becomes a folder that the engine maps without work."""

from __future__ import annotations

import enum
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ascendd.artefact.manifest import Manifest

_INTERRUPTED = 130
_STAGES = {"verify": "checking finished files", "check": "checking for overflow", "write": "converting"}


class DTypeName(str, enum.Enum):
    """Choices of --dtype."""

    AUTO = "auto"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""

    @app.command()
    def convert(
        source: Annotated[Path, typer.Argument(metavar="SRC", help="Hugging Face folder, or a .gguf file.")],
        destination: Annotated[Path, typer.Argument(metavar="DST", help="Folder to write; must not exist.")],
        *,
        dtype: Annotated[
            DTypeName, typer.Option(help="auto keeps the source's; a quantised GGUF becomes float32.")
        ] = DTypeName.AUTO,
        tensor_parallel_size: Annotated[int, typer.Option(min=1, help="Devices that share the model.")] = 1,
        clamp: Annotated[
            bool, typer.Option("--clamp", help="Cut values beyond float16's range instead of refusing.")
        ] = False,
        force: Annotated[bool, typer.Option("--force", help="Replace DST if it is a converted model.")] = False,
        without_tokenizer: Annotated[
            bool, typer.Option("--without-tokenizer", help="Convert weights that come without a tokenizer.")
        ] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
    ) -> None:
        """Convert a model; a conversion that was stopped goes on when the same command is run again."""
        from ascendd.artefact.convert import ConversionRequest, Converter
        from ascendd.artefact.manifest import encode_manifest
        from ascendd.cli.progress_lines import ProgressLines

        request = ConversionRequest(
            source=source,
            destination=destination,
            dtype=dtype.value,
            tensor_parallel_size=tensor_parallel_size,
            clamp=clamp,
            force=force,
            needs_tokenizer=not without_tokenizer,
        )
        started = time.monotonic()
        with ProgressLines() as lines:
            converter = Converter(
                request, lambda step: lines.show(_STAGES[step.stage], step.done_bytes, step.total_bytes)
            )
            try:
                manifest = converter.run()
            except KeyboardInterrupt:
                sys.stderr.write(
                    f"\nstopped; {destination} was not written. Run the same command again to go on: "
                    f"finished files are kept in {converter.folder.path}\n"
                )
                raise typer.Exit(_INTERRUPTED) from None
        if as_json:
            sys.stdout.write(encode_manifest(manifest).decode())
        else:
            _print(manifest, destination, converter.reused_files, time.monotonic() - started)


def _print(manifest: Manifest, destination: Path, reused: list[str], duration_s: float) -> None:
    from ascendd.config.quantity import format_bytes

    ranks = manifest.tensor_parallel_size
    parts = [
        f"{manifest.architecture}, {manifest.num_parameters:,} parameters, {manifest.dtype}",
        f"{format_bytes(manifest.total_bytes)} in {ranks} rank {'file' if ranks == 1 else 'files'}",
        f"{duration_s:.1f} s",
    ]
    print(f"wrote {destination}: {', '.join(parts)}")
    if reused:
        print(f"reused from an earlier run: {', '.join(reused)}")
    if manifest.clamped:
        cut = sum(count.overflow for count in manifest.cast_report.values())
        print(f"cut to float16's range: {cut:,} values; `ascendd inspect {destination} --json` lists the tensors")
