"""Hugging Face folders that are not what they should be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ascendd.artefact.hf_folder import HfFolder
from ascendd.artefact.source import open_source
from ascendd.errors import ConversionFailed, ModelNotFound, ModelUnsupported, WeightsCorrupt

pytestmark = pytest.mark.torch


@pytest.fixture
def folder(tmp_path: Path, save_model: Any) -> Path:
    """A tiny Llama in one file."""
    save_model(tmp_path / "hf")
    return tmp_path / "hf"


def change_tensors(folder: Path, **changes: torch.Tensor | None) -> None:
    """Replace tensors of the only weight file; None takes one away."""
    tensors = load_file(folder / "model.safetensors")
    tensors.update({name.replace("__", "."): tensor for name, tensor in changes.items()})
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def check(folder: Path) -> None:
    """Open the folder and hold its tensors against its configuration."""
    with HfFolder(folder) as source:
        source.check_complete(source.facts())


def change_config(folder: Path, **changes: object) -> None:
    """Change keys of config.json."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def test_whole_folder_passes(folder: Path) -> None:
    """A folder as transformers saved it is complete."""
    check(folder)


def test_missing_and_surplus_tensors_are_listed(folder: Path) -> None:
    """Names that lack and names that nobody knows are both in one message."""
    change_tensors(folder, model__norm__weight=None, model__extra__weight=torch.zeros(3))

    with pytest.raises(WeightsCorrupt) as caught:
        check(folder)

    assert "1 tensors are missing: model.norm.weight" in caught.value.message
    assert "1 tensors are not part of LlamaForCausalLM: model.extra.weight" in caught.value.message


def test_wrong_shape_is_named(folder: Path) -> None:
    """A tensor of another size is reported with both shapes."""
    change_tensors(folder, model__norm__weight=torch.zeros(35))

    with pytest.raises(WeightsCorrupt, match=r"model\.norm\.weight has shape \[35\], config\.json implies \[36\]"):
        check(folder)


def test_rotary_buffers_are_ignored(folder: Path) -> None:
    """inv_freq of old checkpoints is not a weight."""
    change_tensors(folder, model__layers__0__self_attn__rotary_emb__inv_freq=torch.zeros(2))

    check(folder)


def test_head_of_a_tied_model_must_be_the_embedding(folder: Path) -> None:
    """A stored head that equals the embedding is accepted with tied embeddings, one of its own is an error."""
    change_config(folder, tie_word_embeddings=True)
    embedding = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    with pytest.raises(WeightsCorrupt, match=r"lm_head\.weight differs"):
        check(folder)

    change_tensors(folder, lm_head__weight=embedding.clone())

    check(folder)


def test_truncated_weights_are_corrupt(folder: Path) -> None:
    """A download that stopped early is recognised when the folder is opened."""
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    with pytest.raises(WeightsCorrupt, match=r"model\.safetensors is truncated"):
        HfFolder(folder)


def test_missing_shards_are_named(tmp_path: Path, save_model: Any) -> None:
    """Every file that the index names and the folder lacks is in the message."""
    save_model(tmp_path / "hf", shards=True)
    files = sorted((tmp_path / "hf").glob("model-*.safetensors"))
    assert len(files) > 2
    for path in files[:2]:
        path.unlink()

    with pytest.raises(
        WeightsCorrupt, match=f"2 of {len(files)} weight files are missing: {files[0].name}, {files[1].name}"
    ):
        HfFolder(tmp_path / "hf")


def test_index_that_lies_is_corrupt(tmp_path: Path, save_model: Any) -> None:
    """A tensor that is not in the file where the index places it is an error; so is a file outside the folder."""
    save_model(tmp_path / "hf", shards=True)
    path = tmp_path / "hf" / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    first, *_, last = sorted(set(index["weight_map"].values()))
    tensor = next(name for name, file in index["weight_map"].items() if file == first)
    path.write_text(json.dumps({"weight_map": {**index["weight_map"], tensor: last}}))
    with pytest.raises(WeightsCorrupt, match=f"does not hold {tensor}"):
        HfFolder(tmp_path / "hf")

    path.write_text(json.dumps({"weight_map": {**index["weight_map"], tensor: "../hf/" + first}}))

    with pytest.raises(WeightsCorrupt, match="not a file of this folder"):
        HfFolder(tmp_path / "hf")


def test_pickled_weights_are_refused(folder: Path) -> None:
    """A folder with .bin files only is refused with the way out."""
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")

    with pytest.raises(ModelUnsupported, match=r"pytorch_model\.bin") as caught:
        HfFolder(folder)

    assert "save_pretrained" in caught.value.remedy


def test_quantised_checkpoint_is_refused(folder: Path) -> None:
    """A checkpoint of another engine's quantisation is named by its method."""
    change_config(folder, quantization_config={"quant_method": "gptq", "bits": 4})

    with pytest.raises(ModelUnsupported, match="quantised by gptq"):
        HfFolder(folder)


def test_integer_weights_are_refused(folder: Path) -> None:
    """Weights that are no floating-point numbers cannot be served."""
    change_tensors(folder, model__norm__weight=torch.zeros(36, dtype=torch.int8))

    with HfFolder(folder) as source, pytest.raises(ModelUnsupported, match="stored as I8"):
        source.main_dtype()


def test_folder_without_weights_is_not_found(folder: Path) -> None:
    """A configuration alone is no model."""
    (folder / "model.safetensors").unlink()

    with pytest.raises(ModelNotFound, match=r"neither model\.safetensors nor"):
        HfFolder(folder)


def test_unfinished_conversion_is_named(tmp_path: Path) -> None:
    """DST.partial is recognised, and the remedy is to run the command again."""
    (tmp_path / "convert-state.json").write_text("{}")

    with pytest.raises(ConversionFailed, match="unfinished conversion"):
        open_source(tmp_path)


@pytest.mark.parametrize("name", ["absent", "readme.txt"])
def test_path_that_is_no_model_is_not_found(tmp_path: Path, name: str) -> None:
    """What is neither a folder nor a .gguf file is refused with what would be one."""
    (tmp_path / "readme.txt").write_text("hello")

    with pytest.raises(ModelNotFound, match=name) as caught:
        open_source(tmp_path / name)

    assert ".gguf" in caught.value.remedy
