"""Converter: a Hugging Face folder or a GGUF file -> an artefact folder, which the engine maps without further work."""

from __future__ import annotations

import errno
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
import torch

from ascendd import __version__
from ascendd.artefact.cast import DTYPES, NAMES, cast, count_losses, count_not_finite
from ascendd.artefact.layout import RankTensor, fused_operators, rank_layout
from ascendd.artefact.manifest import (
    FORMAT_VERSION,
    CastCount,
    Manifest,
    SourceRecord,
    is_artefact,
    rank_file_name,
    read_manifest,
)
from ascendd.artefact.partial_folder import ConversionState, PartialFolder
from ascendd.artefact.safetensors_writer import SafetensorsWriter, file_bytes
from ascendd.artefact.source import CheckpointSource, open_source
from ascendd.config.model_facts import ModelFacts
from ascendd.config.quantity import format_bytes
from ascendd.errors import ConversionFailed, HostError, ModelNotFound, PermissionMissing, UsageError

SPARE_BYTES = 64 << 20  # stays free for the small files and for others who use the disk
_MAX_LISTED = 8


class ConversionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to convert, and how. dtype `auto` keeps the source's; a quantised source becomes float32."""

    source: Path
    destination: Path
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    tensor_parallel_size: int = 1
    clamp: bool = False
    force: bool = False
    # A model without a tokenizer can be measured and inspected, but not served.
    needs_tokenizer: bool = False


class ConversionProgress(msgspec.Struct, frozen=True):
    """How far a conversion is: `stage` is `verify`, `check` or `write`; the bytes count within the stage."""

    stage: str
    item: str
    done_bytes: int
    total_bytes: int


class Converter:
    """
    One conversion.

    Tensors pass one by one, so memory holds about the largest of them. A conversion that was stopped, however, is gone
    on with by running it again: whole rank files are reused.
    """

    def __init__(
        self, request: ConversionRequest, progress: Callable[[ConversionProgress], None] | None = None
    ) -> None:
        if request.tensor_parallel_size < 1:
            raise UsageError(f"--tensor-parallel-size {request.tensor_parallel_size} is not 1 or more")
        self._request = request
        self._progress = progress or (lambda _: None)
        self.folder = PartialFolder(request.destination)
        self.reused_files: list[str] = []

    def run(self) -> Manifest:
        """
        Convert and return the manifest.

        Raises ConversionFailed (DST exists, float16 overflow, another conversion at work), HostError (no space, no
        permission) and what opening the source raises. After an error or a kill, DST is what it was before.
        """
        self._check_source()
        self.folder.check_destination(force=self._request.force)
        with open_source(self._request.source) as source:
            facts = source.facts()
            tp_size = self._request.tensor_parallel_size
            layouts = [rank_layout(facts, rank, tp_size) for rank in range(tp_size)]
            source.check_complete(facts)
            dtype = self._choose_dtype(source)
            small_files = _small_files(source, dtype)  # before the long part: an unknown tokenizer shows at once
            if self._request.needs_tokenizer and "tokenizer.json" not in small_files:
                raise ModelNotFound(
                    f"{self._request.source} holds no tokenizer.json, so the converted model could not be served",
                    remedy="Download tokenizer.json of the model into that folder, or save its tokenizer there in the "
                    "fast format. --without-tokenizer converts the weights alone.",
                    path=str(self._request.source / "tokenizer.json"),
                )
            try:
                with self.folder.locked():
                    return self._fill(source, facts, layouts, dtype, small_files)
            except PermissionError as error:
                raise PermissionMissing(f"{error.filename or self.folder.path} cannot be written") from error
            except OSError as error:
                what = "the disk is full" if error.errno == errno.ENOSPC else str(error)
                raise HostError(
                    f"{self.folder.path} cannot be written: {what}",
                    remedy="Clear the cause and run the same command again: finished files are kept and reused.",
                ) from error

    def _fill(
        self,
        source: CheckpointSource,
        facts: ModelFacts,
        layouts: list[list[RankTensor]],
        dtype: torch.dtype,
        small_files: dict[str, bytes],
    ) -> Manifest:
        self.folder.check_destination(force=self._request.force)  # again: only now nobody else can publish
        state = self.folder.resume(
            self._inputs(source, dtype), lambda name, done, total: self._tell("verify", name, done, total)
        )
        self.reused_files = list(state.finished)
        self._check_space(layouts, dtype, state)
        if state.cast_report is None:
            state.cast_report = self._check_cast(source, dtype)
            self.folder.save(state)
        for rank, layout in enumerate(layouts):
            self._write_rank(source, layout, rank, dtype, state)
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            architecture=facts.architecture,
            dtype=NAMES[dtype],
            tensor_parallel_size=len(layouts),
            fused_operators=fused_operators(facts),
            num_parameters=facts.num_parameters,
            total_bytes=sum(entry.bytes for entry in state.finished.values()),
            files={**state.finished, **{name: self.folder.write(name, data) for name, data in small_files.items()}},
            source=_source_record(source),
            cast_report=state.cast_report,
            clamped=any(count.overflow for count in state.cast_report.values()),
            created_unix_s=int(time.time()),
            ascendd_version=__version__,
        )
        self.folder.publish(manifest)
        return manifest

    def _check_source(self) -> None:
        source = self._request.source
        if source.resolve() == self.folder.destination:
            raise UsageError(f"source and destination are both {self.folder.destination}")
        if is_artefact(source):
            raise UsageError(
                f"{source} is already converted",
                remedy=f"Serve it as it is, or convert its source again: {read_manifest(source).source.path}",
            )

    def _choose_dtype(self, source: CheckpointSource) -> torch.dtype:
        if self._request.dtype != "auto":
            return DTYPES[self._request.dtype]
        dtype = source.main_dtype()
        return dtype if dtype in NAMES else torch.float32

    def _inputs(self, source: CheckpointSource, dtype: torch.dtype) -> dict[str, object]:
        return {
            "format_version": FORMAT_VERSION,
            "ascendd_version": __version__,
            "dtype": NAMES[dtype],
            "tensor_parallel_size": self._request.tensor_parallel_size,
            "clamp": self._request.clamp,
            "files": {str(path.resolve()): _fingerprint(path) for path in source.input_files()},
        }

    def _check_space(self, layouts: list[list[RankTensor]], dtype: torch.dtype, state: ConversionState) -> None:
        to_write = {rank_file_name(rank, len(layouts)): layout for rank, layout in enumerate(layouts)}
        sizes = [file_bytes(layout, dtype) for name, layout in to_write.items() if name not in state.finished]
        needed, free = sum(sizes) + SPARE_BYTES, shutil.disk_usage(self.folder.path).free
        if needed > free:
            raise HostError(
                f"{self.folder.path.parent} has {format_bytes(free)} free, the conversion needs {format_bytes(needed)}",
                remedy="Free space there, or choose a folder on another disk.",
                free_bytes=free,
                needed_bytes=needed,
            )

    def _check_cast(self, source: CheckpointSource, dtype: torch.dtype) -> dict[str, CastCount]:
        """Read all tensors that become float16 once, so that every overflow is known before anything is written."""
        if dtype is not torch.float16:
            return {}
        narrowed = [name for name in source.shapes if source.dtype_of(name) is not torch.float16]
        sizes = {name: torch.Size(source.shapes[name]).numel() * source.dtype_of(name).itemsize for name in narrowed}
        report: dict[str, CastCount] = {}
        done, total = 0, sum(sizes.values())
        for name, num_bytes in sizes.items():
            self._tell("check", name, done, total)
            losses = count_losses(source.read(name))
            if losses != CastCount():
                report[name] = losses
            done += num_bytes
            self._tell("check", name, done, total)
        overflow = {name: count.overflow for name, count in report.items() if count.overflow}
        if overflow and not self._request.clamp:
            raise ConversionFailed(
                f"{sum(overflow.values())} values in {len(overflow)} tensors are beyond float16's 65504 "
                f"and would become infinite: {_counted(overflow)}",
                remedy="Use --dtype bfloat16 or float32, or --clamp to cut them to 65504.",
                counts=overflow,
            )
        return report

    def _write_rank(
        self,
        source: CheckpointSource,
        layout: list[RankTensor],
        rank: int,
        dtype: torch.dtype,
        state: ConversionState,
    ) -> None:
        tp_size = self._request.tensor_parallel_size
        name = rank_file_name(rank, tp_size)
        rank_bytes = file_bytes(layout, dtype)  # ranks differ by a bias at most, so this stands for all of them
        done, total = rank * rank_bytes, tp_size * rank_bytes
        if name not in state.finished:
            with SafetensorsWriter(self.folder.path / name, layout, dtype) as writer:
                for tensor in layout:
                    self._tell("write", tensor.name, done, total)
                    writer.write(self._convert_tensor(source, tensor, dtype))
                    done += tensor.num_elements * dtype.itemsize
            state.finished[name] = writer.entry
            self.folder.save(state)
        self._tell("write", name, (rank + 1) * rank_bytes, total)

    def _convert_tensor(self, source: CheckpointSource, tensor: RankTensor, dtype: torch.dtype) -> torch.Tensor:
        weight = source.read_rank_tensor(tensor)
        if count := count_not_finite(weight):
            names = " or ".join(dict.fromkeys(cut.source.name for cut in tensor.cuts))
            raise ConversionFailed(
                f"{source.path}: {count} values of {names} are infinite or not a number",
                remedy="The source is damaged; download it again.",
            )
        return cast(weight, dtype, clamp=self._request.clamp)

    def _tell(self, stage: str, item: str, done: int, total: int) -> None:
        self._progress(ConversionProgress(stage, item, done, total))


def _small_files(source: CheckpointSource, dtype: torch.dtype) -> dict[str, bytes]:
    config = source.config()
    config.pop("torch_dtype", None)
    config["dtype"] = NAMES[dtype]
    files = {"config.json": _json(config), **source.tokenizer_files()}
    if generation := source.generation_config():
        files["generation_config.json"] = _json(generation)
    return files


def _source_record(source: CheckpointSource) -> SourceRecord:
    return SourceRecord(
        path=str(source.path.resolve()),
        format=source.format,
        dtype=str(source.main_dtype()).removeprefix("torch."),
        quantisation=source.quantisation,
        bytes=sum(path.stat().st_size for path in source.input_files()),
    )


def _fingerprint(path: Path) -> str:
    stat = path.stat()
    return f"{stat.st_size}:{stat.st_mtime_ns}"


def _json(data: dict[str, object]) -> bytes:
    return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()


def _counted(counts: dict[str, int]) -> str:
    worst = sorted(counts.items(), key=lambda item: -item[1])
    rest = f" and {len(worst) - _MAX_LISTED} more" if len(worst) > _MAX_LISTED else ""
    return ", ".join(f"{name} ({count})" for name, count in worst[:_MAX_LISTED]) + rest
