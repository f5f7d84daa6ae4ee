"""Converting: what is written, what is refused, what a kill leaves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ascendd.artefact import convert as convert_module
from ascendd.artefact.convert import ConversionRequest, Converter
from ascendd.artefact.manifest import CastCount, is_artefact, read_manifest, verify_files
from ascendd.artefact.partial_folder import PartialFolder
from ascendd.artefact.rank_weights import open_rank_weights
from ascendd.config.model_facts import read_model_facts
from ascendd.errors import AscenddError, ConversionFailed, HostError, UsageError

pytestmark = pytest.mark.torch


@pytest.fixture
def source(tmp_path: Path, save_model: Any) -> Path:
    """A tiny bfloat16 Llama with a tokenizer's files beside it."""
    save_model(tmp_path / "hf", dtype=torch.bfloat16)
    (tmp_path / "hf" / "tokenizer.json").write_text('{"model": null}')
    (tmp_path / "hf" / "tokenizer_config.json").write_text("{}")
    return tmp_path / "hf"


def convert(source: Path, destination: Path, **options: Any) -> Converter:
    """Convert and return the converter."""
    converter = Converter(ConversionRequest(source=source, destination=destination, **options))
    converter.run()
    return converter


def checksums(folder: Path) -> dict[str, str]:
    """SHA-256 of every file by name, as the manifest says and the files prove."""
    manifest = read_manifest(folder)
    assert verify_files(folder, manifest) == {}
    return {name: entry.sha256 for name, entry in manifest.files.items()}


def test_artefact_describes_itself(source: Path, tmp_path: Path) -> None:
    """The manifest names what is in the folder, and the folder holds those files and nothing else."""
    convert(source, tmp_path / "out", tensor_parallel_size=3)

    manifest = read_manifest(tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*manifest.files, "ascendd-manifest.json"}
    assert verify_files(tmp_path / "out", manifest) == {}
    assert (manifest.architecture, manifest.dtype, manifest.tensor_parallel_size) == ("LlamaForCausalLM", "bfloat16", 3)
    assert manifest.total_bytes == sum((tmp_path / "out" / name).stat().st_size for name in manifest.rank_files)
    assert manifest.num_parameters == read_model_facts(source).num_parameters
    assert (manifest.source.path, manifest.source.format) == (str(source), "huggingface")
    assert not (tmp_path / "out.partial").exists()


def test_small_files_come_along(source: Path, tmp_path: Path) -> None:
    """Tokenizer files are copied, config.json says the new dtype, and the facts stay the same otherwise."""
    convert(source, tmp_path / "out", dtype="float32")

    assert (tmp_path / "out" / "tokenizer.json").read_text() == '{"model": null}'
    facts = read_model_facts(tmp_path / "out")
    assert facts.dtype == "float32"
    assert facts.hidden_size == read_model_facts(source).hidden_size
    assert "torch_dtype" not in json.loads((tmp_path / "out" / "config.json").read_text())


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_values_are_those_of_a_cast(source: Path, tmp_path: Path, dtype: str) -> None:
    """Each tensor equals that of the source after torch's own cast."""
    convert(source, tmp_path / "out", dtype=dtype)

    before = open_rank_weights(source, read_model_facts(source))
    after = open_rank_weights(tmp_path / "out", read_model_facts(tmp_path / "out"))
    with before, after:
        for name in before.names:
            assert torch.equal(after.read(name), before.read(name).to(getattr(torch, dtype)))


def test_file_is_readable_by_safetensors(source: Path, tmp_path: Path) -> None:
    """The library of the format reads the rank file and finds the same tensors."""
    from safetensors.torch import load_file

    convert(source, tmp_path / "out")

    loaded = load_file(tmp_path / "out" / "rank-0-of-1.safetensors")
    with open_rank_weights(tmp_path / "out", read_model_facts(tmp_path / "out")) as weights:
        assert set(loaded) == set(weights.names)
        assert all(torch.equal(loaded[name], weights.read(name)) for name in loaded)


def test_overflow_is_refused_before_anything_is_written(tmp_path: Path, save_model: Any) -> None:
    """Values beyond float16 stop the conversion with tensor names and counts, and leave no artefact."""
    model = save_model(tmp_path / "hf", dtype=torch.bfloat16)
    with torch.no_grad():
        model.model.norm.weight[:3] = 1e5
        model.model.layers[1].mlp.up_proj.weight[0, 0] = -7e4
    model.save_pretrained(tmp_path / "hf")

    with pytest.raises(ConversionFailed, match="4 values in 2 tensors are beyond float16's 65504") as caught:
        convert(tmp_path / "hf", tmp_path / "out", dtype="float16")

    assert "model.norm.weight (3), model.layers.1.mlp.up_proj.weight (1)" in caught.value.message
    assert "--clamp" in caught.value.remedy
    assert not (tmp_path / "out").exists()
    assert not list((tmp_path / "out.partial").glob("rank-*"))


def test_clamp_cuts_and_reports(tmp_path: Path, save_model: Any) -> None:
    """With --clamp the values become 65504, and the manifest counts them together with what vanished."""
    model = save_model(tmp_path / "hf", dtype=torch.bfloat16)
    with torch.no_grad():
        model.model.norm.weight[:] = 1.0
        model.model.norm.weight[:4] = torch.tensor([1e5, -1e5, 1e-6, 1e-9])
    model.save_pretrained(tmp_path / "hf")

    convert(tmp_path / "hf", tmp_path / "out", dtype="float16", clamp=True)

    manifest = read_manifest(tmp_path / "out")
    assert manifest.clamped
    assert manifest.cast_report["model.norm.weight"] == CastCount(overflow=2, subnormal=1, zero=1)
    with open_rank_weights(tmp_path / "out", read_model_facts(tmp_path / "out")) as weights:
        values = weights.read("model.norm.weight")
        assert values[:2].tolist() == [65504.0, -65504.0]
        assert bool(values.isfinite().all())


def test_broken_values_are_refused(tmp_path: Path, save_model: Any) -> None:
    """A NaN in the source is not carried over silently, whatever the dtype."""
    model = save_model(tmp_path / "hf")
    with torch.no_grad():
        model.model.layers[0].self_attn.k_proj.weight[0, 0] = float("nan")
    model.save_pretrained(tmp_path / "hf")

    with pytest.raises(ConversionFailed, match=r"1 values of .*k_proj\.weight.* are infinite or not a number"):
        convert(tmp_path / "hf", tmp_path / "out")

    assert not (tmp_path / "out").exists()


def test_existing_destination_is_kept(source: Path, tmp_path: Path) -> None:
    """Without --force nothing is touched; with it an artefact is replaced and nothing is left of the old one."""
    convert(source, tmp_path / "out")
    before = read_manifest(tmp_path / "out")
    with pytest.raises(ConversionFailed, match="exists") as caught:
        convert(source, tmp_path / "out", dtype="float32")
    assert "--force" in caught.value.remedy
    assert read_manifest(tmp_path / "out") == before

    convert(source, tmp_path / "out", dtype="float32", force=True)

    assert read_manifest(tmp_path / "out").dtype == "float32"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "out"]


def test_force_never_removes_foreign_folders(source: Path, tmp_path: Path) -> None:
    """A folder that ascendd did not write survives --force."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("ten years")

    with pytest.raises(ConversionFailed, match="was not written by"):
        convert(source, tmp_path / "home", force=True)

    assert (tmp_path / "home" / "thesis.txt").read_text() == "ten years"


def test_full_disk_is_known_before_the_start(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little space is an error with both numbers, and nothing is written."""
    usage = convert_module.shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(convert_module.shutil, "disk_usage", lambda _: usage)

    with pytest.raises(HostError, match=r"has 1000 B free, the conversion needs 64\.\d+ MiB"):
        convert(source, tmp_path / "out")

    assert not list((tmp_path / "out.partial").glob("rank-*"))


def test_write_error_is_a_host_error(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up while others write is named, and the next run goes on."""
    real_save = PartialFolder.save
    calls = []

    def failing_save(folder: PartialFolder, state: Any) -> None:
        calls.append(state)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        real_save(folder, state)

    monkeypatch.setattr(PartialFolder, "save", failing_save)
    with pytest.raises(HostError, match="the disk is full") as caught:
        convert(source, tmp_path / "out")
    assert "again" in caught.value.remedy
    monkeypatch.undo()

    convert(source, tmp_path / "out")

    assert is_artefact(tmp_path / "out")


def test_second_conversion_waits_outside(source: Path, tmp_path: Path) -> None:
    """While one conversion holds DST.partial, another is refused and changes nothing."""
    with PartialFolder(tmp_path / "out").locked():
        with pytest.raises(ConversionFailed, match="another conversion is writing"):
            convert(source, tmp_path / "out")

        assert list((tmp_path / "out.partial").iterdir()) == []


def test_artefact_is_not_converted_again(source: Path, tmp_path: Path) -> None:
    """Converting an artefact is an error that names its source; so is converting a folder onto itself."""
    convert(source, tmp_path / "out")

    with pytest.raises(UsageError, match="already converted") as caught:
        convert(tmp_path / "out", tmp_path / "again")
    assert str(source) in caught.value.remedy
    with pytest.raises(UsageError, match="source and destination"):
        convert(source, source, force=True)


def test_progress_counts_up_to_the_whole(source: Path, tmp_path: Path) -> None:
    """Each stage counts up and ends at its total; float16 adds the stage that looks for overflow."""
    seen: dict[str, list[tuple[int, int]]] = {}
    request = ConversionRequest(source=source, destination=tmp_path / "out", dtype="float16", tensor_parallel_size=3)

    Converter(request, lambda step: seen.setdefault(step.stage, []).append((step.done_bytes, step.total_bytes))).run()

    assert list(seen) == ["check", "write"]
    for steps in seen.values():
        assert steps == sorted(steps)
        assert steps[-1][0] == steps[-1][1]


# A conversion that kills itself with SIGKILL where `stage`, and the part of the item's name, come up.
KILLED = """
import os, signal, sys
from pathlib import Path
from ascendd.artefact import partial_folder
from ascendd.artefact.convert import ConversionRequest, Converter

source, destination, stage, part = sys.argv[1:]

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def progress(step):
    if step.stage == stage and part in f"{step.done_bytes * 3 // step.total_bytes} {step.item}":
        die()

if stage == "publish":
    real_rename = Path.rename
    def rename(path, target):
        return die() if path.name.endswith(".partial") else real_rename(path, target)
    Path.rename = rename
request = ConversionRequest(
    source=Path(source), destination=Path(destination), dtype="float16", tensor_parallel_size=3, force=stage == "publish"
)
Converter(request, progress).run()
"""


def kill_conversion(source: Path, destination: Path, stage: str, part: str) -> None:
    """Run a conversion that is killed on its way."""
    command = [sys.executable, "-c", KILLED, str(source), str(destination), stage, part]
    done = subprocess.run(command, check=False, capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


@pytest.mark.system
@pytest.mark.parametrize(
    ("stage", "part", "num_reused"),
    [
        ("check", "self_attn.v_proj", 0),
        ("write", "0 model.layers.1.mlp", 0),
        ("write", "1 model.layers.1.mlp", 1),
        ("write", "rank-2", 3),
        ("publish", "", 0),
    ],
    ids=["checking", "first-rank", "second-rank", "all-ranks", "renaming"],
)
def test_killed_conversion_is_gone_on_with(
    source: Path, tmp_path: Path, stage: str, part: str, num_reused: int
) -> None:
    """After kill -9 there is no DST; the next run reuses whole rank files and the result is the same to the byte."""
    convert(source, tmp_path / "clean", dtype="float16", tensor_parallel_size=3)

    kill_conversion(source, tmp_path / "out", stage, part)

    assert not (tmp_path / "out").exists()
    with pytest.raises(AscenddError):
        convert(tmp_path / "out", tmp_path / "elsewhere")
    converter = convert(source, tmp_path / "out", dtype="float16", tensor_parallel_size=3)
    assert converter.reused_files == [f"rank-{rank}-of-3.safetensors" for rank in range(num_reused)]
    assert checksums(tmp_path / "out") == checksums(tmp_path / "clean")


@pytest.mark.system
def test_killed_replacement_keeps_the_old_artefact(source: Path, tmp_path: Path) -> None:
    """Killed between the two renames of --force, the old artefact is put back by the next run."""
    convert(source, tmp_path / "out")

    kill_conversion(source, tmp_path / "out", "publish", "")
    with pytest.raises(ConversionFailed, match="exists"):
        convert(source, tmp_path / "out", dtype="float16", tensor_parallel_size=3)

    assert read_manifest(tmp_path / "out").dtype == "bfloat16"


@pytest.mark.system
def test_unfinished_folder_cannot_be_served(source: Path, tmp_path: Path) -> None:
    """DST.partial of a killed conversion is not taken for a model."""
    kill_conversion(source, tmp_path / "out", "write", "2 model.layers.1.mlp")

    with pytest.raises(AscenddError, match=r"config\.json|unfinished"):
        open_rank_weights(tmp_path / "out.partial", read_model_facts(source))


@pytest.mark.system
def test_damaged_leftover_is_written_again(source: Path, tmp_path: Path) -> None:
    """A finished file whose bytes changed since is not reused."""
    convert(source, tmp_path / "clean", dtype="float16", tensor_parallel_size=3)
    kill_conversion(source, tmp_path / "out", "write", "2 model.layers.1.mlp")
    leftover = tmp_path / "out.partial" / "rank-0-of-3.safetensors"
    leftover.write_bytes(leftover.read_bytes()[:-1] + b"\x55")

    converter = convert(source, tmp_path / "out", dtype="float16", tensor_parallel_size=3)

    assert converter.reused_files == ["rank-1-of-3.safetensors"]
    assert checksums(tmp_path / "out") == checksums(tmp_path / "clean")


@pytest.mark.system
def test_other_inputs_start_afresh(source: Path, tmp_path: Path) -> None:
    """Leftovers of another dtype, or of weights that changed since, are not mixed in."""
    kill_conversion(source, tmp_path / "out", "write", "2 model.layers.1.mlp")

    converter = convert(source, tmp_path / "out", dtype="float32", tensor_parallel_size=3)

    assert converter.reused_files == []
    assert read_manifest(tmp_path / "out").dtype == "float32"
