"""The manifest: read, written, and held against the folder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import msgspec
import pytest

from ascendd.artefact.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    CastCount,
    FileEntry,
    Manifest,
    SourceRecord,
    check_complete,
    check_tensor_parallel_size,
    encode_manifest,
    is_artefact,
    read_manifest,
    verify_files,
)
from ascendd.errors import ModelError, ModelUnsupported, WeightsCorrupt

CONTENTS = {"rank-0-of-2.safetensors": b"first", "rank-1-of-2.safetensors": b"second", "config.json": b"{}"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with three files and their manifest."""
    for name, data in CONTENTS.items():
        (tmp_path / name).write_bytes(data)
    write_manifest(tmp_path, make_manifest())
    return tmp_path


def make_manifest(**changes: object) -> Manifest:
    """The manifest of CONTENTS."""
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        architecture="LlamaForCausalLM",
        dtype="float16",
        tensor_parallel_size=2,
        fused_operators=("qkv_proj", "gate_up_proj"),
        num_parameters=42,
        total_bytes=11,
        files={n: FileEntry(bytes=len(d), sha256=hashlib.sha256(d).hexdigest()) for n, d in CONTENTS.items()},
        source=SourceRecord(path="/models/tiny", format="huggingface", dtype="bfloat16", quantisation={}, bytes=5),
        cast_report={"model.norm.weight": CastCount(overflow=1, subnormal=2, zero=3)},
        clamped=True,
        created_unix_s=1700000000,
        ascendd_version="0.1.0",
    )
    return msgspec.structs.replace(manifest, **changes)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Put the manifest where it belongs."""
    (folder / MANIFEST_NAME).write_bytes(encode_manifest(manifest))


def test_manifest_survives_the_round_trip(folder: Path) -> None:
    """What was written is read back, and marks the folder as an artefact."""
    manifest = read_manifest(folder)

    assert manifest == make_manifest()
    assert is_artefact(folder)
    assert manifest.rank_files == ["rank-0-of-2.safetensors", "rank-1-of-2.safetensors"]


def test_folder_without_manifest_is_no_artefact(tmp_path: Path) -> None:
    """A folder is an artefact by its manifest alone."""
    (tmp_path / "rank-0-of-1.safetensors").write_bytes(b"x")

    assert not is_artefact(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format_version": 1}', '{"format_version": "one"}'])
def test_broken_manifest_is_corrupt(folder: Path, text: str) -> None:
    """A manifest that cannot be decoded is named in the error."""
    (folder / MANIFEST_NAME).write_text(text)

    with pytest.raises(WeightsCorrupt, match=MANIFEST_NAME):
        read_manifest(folder)


def test_newer_format_is_refused(folder: Path) -> None:
    """A manifest of a later version asks for a later ascendd, whatever else it says."""
    (folder / MANIFEST_NAME).write_text(json.dumps({"format_version": FORMAT_VERSION + 1, "shape": "unknown"}))

    with pytest.raises(ModelUnsupported, match="format 2"):
        read_manifest(folder)


@pytest.mark.parametrize("name", ["../config.json", "/etc/passwd", "sub/file"])
def test_file_outside_the_folder_is_refused(folder: Path, name: str) -> None:
    """A manifest cannot point out of its folder."""
    files = {**make_manifest().files, name: FileEntry(bytes=1, sha256="0" * 64)}
    write_manifest(folder, make_manifest(files=files))

    with pytest.raises(WeightsCorrupt, match="not a file of this folder"):
        read_manifest(folder)


def test_manifest_must_list_its_ranks(folder: Path) -> None:
    """A rank without an entry is an error that names the file."""
    write_manifest(folder, make_manifest(tensor_parallel_size=3))

    with pytest.raises(WeightsCorrupt, match="does not list rank-0-of-3"):
        read_manifest(folder)


def test_complete_folder_passes(folder: Path) -> None:
    """Sizes and contents as recorded raise nothing and report nothing."""
    check_complete(folder, make_manifest())

    assert verify_files(folder, make_manifest()) == {}


def test_missing_and_truncated_files_are_named(folder: Path) -> None:
    """The cheap check names a missing file, and a short one with both sizes."""
    (folder / "config.json").unlink()
    (folder / "rank-1-of-2.safetensors").write_bytes(b"sec")

    with pytest.raises(
        WeightsCorrupt, match=r"rank-1-of-2\.safetensors has 3 bytes instead of 6; config\.json is missing"
    ):
        check_complete(folder, make_manifest())


def test_changed_byte_is_found_by_hashing_only(folder: Path) -> None:
    """A flipped byte passes the check of sizes and fails that of checksums."""
    (folder / "rank-0-of-2.safetensors").write_bytes(b"First")

    check_complete(folder, make_manifest())
    problems = verify_files(folder, make_manifest())

    assert list(problems) == ["rank-0-of-2.safetensors"]
    assert "SHA-256" in problems["rank-0-of-2.safetensors"]


def test_verify_reports_missing_files_and_progress(folder: Path) -> None:
    """A missing file is a finding; the bytes read add up to those of the others."""
    (folder / "config.json").unlink()
    read: list[int] = []

    problems = verify_files(folder, make_manifest(), read.append)

    assert problems == {"config.json": "No such file or directory"}
    assert sum(read) == len(b"first") + len(b"second")


def test_other_tensor_parallel_size_names_the_command() -> None:
    """The refusal carries both numbers and the command that repacks from the recorded source."""
    with pytest.raises(ModelError, match="packed for tensor_parallel_size 2, the configuration asks for 4") as caught:
        check_tensor_parallel_size(Path("/srv/tiny"), make_manifest(), 4)

    command = "ascendd convert /models/tiny /srv/tiny-tp4 --dtype float16 --tensor-parallel-size 4"
    assert command in caught.value.remedy
    assert caught.value.exit_code == 66


def test_same_tensor_parallel_size_is_accepted() -> None:
    """Nothing is raised for the size that the artefact was packed for."""
    check_tensor_parallel_size(Path("/srv/tiny"), make_manifest(), 2)
