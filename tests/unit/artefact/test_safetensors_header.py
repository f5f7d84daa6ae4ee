"""Headers of safetensors files, good and broken."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest

from ascendd.artefact.safetensors_header import StoredTensor, read_header
from ascendd.errors import WeightsCorrupt


def write(path: Path, header: object, data: bytes) -> Path:
    """Write a file with this header and data."""
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    """One tensor of a header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_header_is_read(tmp_path: Path) -> None:
    """Names, dtypes, shapes and places come from the header; metadata is not a tensor."""
    header = {"__metadata__": {"format": "pt"}, "b": entry("BF16", [2], 4, 8), "a": entry("F32", [], 0, 4)}
    path = write(tmp_path / "x.safetensors", header, bytes(8))

    tensors = read_header(path)

    start = path.stat().st_size - 8
    assert tensors == {"b": StoredTensor("BF16", (2,), start + 4, 4), "a": StoredTensor("F32", (), start, 4)}


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    """Opening a pipe would wait for a writer for ever, so only regular files are opened."""
    path = tmp_path / "x.safetensors"
    os.mkfifo(path)

    with pytest.raises(WeightsCorrupt, match="is not a regular file"):
        read_header(path)


@pytest.mark.parametrize(
    ("kept", "message"),
    [(0, "not a safetensors file"), (7, "not a safetensors file"), (20, "header alone needs"), (-1, "header promises")],
)
def test_truncated_file_is_corrupt(tmp_path: Path, kept: int, message: str) -> None:
    """A file cut anywhere is recognised without reading its data."""
    path = write(tmp_path / "x.safetensors", {"a": entry("F32", [2], 0, 8)}, bytes(8))
    path.write_bytes(path.read_bytes()[:kept])

    with pytest.raises(WeightsCorrupt, match=message) as caught:
        read_header(path)

    assert str(path) in caught.value.message


def test_missing_file_is_corrupt(tmp_path: Path) -> None:
    """A file that is not there is named with the system's reason."""
    with pytest.raises(WeightsCorrupt, match="No such file"):
        read_header(tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ({"a": entry("F32", [2], 0, 4)}, bytes(4), "do not hold F32"),
        ({"a": entry("F31", [1], 0, 4)}, bytes(4), "broken header"),
        ({"a": {"dtype": "F32"}}, b"", "broken header"),
        ({"a": entry("F32", [1], -4, 0)}, b"", "do not hold"),
        ([], b"", "broken header"),
        ({"a": entry("F32", [1], 4, 8)}, bytes(8), "does not begin where the tensor before it ends"),
        ({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 0, 4)}, bytes(4), "does not begin"),
        ({"a": entry("F32", [1], 0, 4)}, bytes(5), "bytes after its last tensor"),
    ],
)
def test_inconsistent_header_is_corrupt(tmp_path: Path, header: object, data: bytes, message: str) -> None:
    """Offsets must agree with shapes, and the data must be neither gapped, shared nor longer than the tensors."""
    path = write(tmp_path / "x.safetensors", header, data)

    with pytest.raises(WeightsCorrupt, match=message):
        read_header(path)


def test_text_file_is_not_safetensors(tmp_path: Path) -> None:
    """The pointer file that a missing Git LFS leaves is recognised by its absurd header length."""
    path = tmp_path / "x.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\n")

    with pytest.raises(WeightsCorrupt, match="not a safetensors file"):
        read_header(path)
