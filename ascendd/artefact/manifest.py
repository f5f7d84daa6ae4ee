"""
The manifest of an artefact folder, and the checks that need no torch.

    DST/ascendd-manifest.json         this file; written last, so a folder that has it is whole
    DST/rank-R-of-N.safetensors       one per rank, fused tensors (ascendd.artefact.layout)
    DST/config.json, tokenizer.json   and the other small files, as in a Hugging Face folder
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from ascendd.errors import ModelError, ModelUnsupported, WeightsCorrupt

MANIFEST_NAME = "ascendd-manifest.json"
STATE_NAME = "convert-state.json"  # in DST.partial only
FORMAT_VERSION = 1
_CHUNK_BYTES = 1 << 20


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One file of the artefact."""

    bytes: int
    sha256: str


class CastCount(msgspec.Struct, frozen=True, kw_only=True):
    """What a cast to float16 did to the values of one source tensor."""

    overflow: int = 0  # finite before, beyond 65504: infinite, or clamped
    subnormal: int = 0  # below 6.1e-5: fewer than 11 significant bits are left
    zero: int = 0  # not 0 before, 0 after


class SourceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Where the weights came from."""

    path: str
    format: str
    dtype: str
    quantisation: dict[str, int]  # tensors per block-quantised type
    bytes: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What an artefact holds."""

    format_version: int
    architecture: str
    dtype: str
    tensor_parallel_size: int
    fused_operators: tuple[str, ...]
    num_parameters: int
    total_bytes: int  # of the rank files
    files: dict[str, FileEntry]
    source: SourceRecord
    # Source tensors that lost something in the cast to float16; the others are left out.
    cast_report: dict[str, CastCount]
    clamped: bool
    created_unix_s: int
    ascendd_version: str

    @property
    def rank_files(self) -> list[str]:
        """Names of the weight files, by rank."""
        return [rank_file_name(rank, self.tensor_parallel_size) for rank in range(self.tensor_parallel_size)]


def rank_file_name(tp_rank: int, tp_size: int) -> str:
    """Return the name of the weight file of one rank."""
    return f"rank-{tp_rank}-of-{tp_size}.safetensors"


def is_artefact(folder: Path) -> bool:
    """Tell whether `folder` was written by `ascendd convert` and finished."""
    return (folder / MANIFEST_NAME).is_file()


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of `folder`. Raises WeightsCorrupt, or ModelUnsupported for a newer format."""
    path = folder / MANIFEST_NAME
    try:
        raw = path.read_bytes()
        version = msgspec.json.decode(raw, type=dict[str, object]).get("format_version")
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise ModelUnsupported(
                f"{path} has format {version}; this ascendd reads up to {FORMAT_VERSION}",
                remedy="Upgrade ascendd, or convert the model again.",
            )
        manifest = msgspec.json.decode(raw, type=Manifest)
    except (OSError, msgspec.DecodeError) as error:
        raise WeightsCorrupt(f"{path} cannot be read: {error}", path=str(path)) from error
    if missing := [name for name in manifest.rank_files if name not in manifest.files]:
        raise WeightsCorrupt(f"{path} does not list {', '.join(missing)}", path=str(path))
    if strange := [name for name in manifest.files if Path(name).name != name]:
        raise WeightsCorrupt(f"{path} lists {strange[0]!r}, which is not a file of this folder", path=str(path))
    return manifest


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the manifest as the JSON text that `read_manifest` reads."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def check_tensor_parallel_size(folder: Path, manifest: Manifest, tp_size: int) -> None:
    """Raise ModelError, with the command that repacks, unless the artefact was packed for `tp_size` ranks."""
    packed = manifest.tensor_parallel_size
    if packed == tp_size:
        return
    raise ModelError(
        f"{folder} is packed for tensor_parallel_size {packed}, the configuration asks for {tp_size}",
        remedy=f"Set parallel.tensor_parallel_size to {packed}, or repack: ascendd convert {manifest.source.path} "
        f"{folder}-tp{tp_size} --dtype {manifest.dtype} --tensor-parallel-size {tp_size}",
        packed=packed,
        configured=tp_size,
    )


def check_complete(folder: Path, manifest: Manifest) -> None:
    """Raise WeightsCorrupt unless every file is there with its length; reads no contents."""
    problems = []
    for name, entry in manifest.files.items():
        path = folder / name
        if not path.is_file():
            problems.append(f"{name} is missing")
        elif path.stat().st_size != entry.bytes:
            problems.append(f"{name} has {path.stat().st_size} bytes instead of {entry.bytes}")
    if problems:
        raise WeightsCorrupt(
            f"{folder} is not complete: {'; '.join(problems)}",
            remedy="Convert or copy the model again.",
            path=str(folder),
        )


def verify_files(folder: Path, manifest: Manifest, progress: Callable[[int], None] | None = None) -> dict[str, str]:
    """
    Hash every file and return what is wrong, by file name; empty when all is well.

    `progress` is called with the number of bytes read since its last call.
    """
    problems = {}
    for name, entry in manifest.files.items():
        try:
            digest, num_bytes = hash_file(folder / name, progress)
        except OSError as error:
            problems[name] = error.strerror or str(error)
            continue
        if num_bytes != entry.bytes:
            problems[name] = f"{num_bytes} bytes instead of {entry.bytes}"
        elif digest != entry.sha256:
            problems[name] = f"SHA-256 is {digest}, the manifest says {entry.sha256}"
    return problems


def hash_file(path: Path, progress: Callable[[int], None] | None = None) -> tuple[str, int]:
    """Return the SHA-256 of a file in hex and its length in bytes."""
    digest, num_bytes = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            num_bytes += len(chunk)
            if progress is not None:
                progress(len(chunk))
    return digest.hexdigest(), num_bytes


def sync_folder(folder: Path) -> None:
    """Make renames and new files of `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
