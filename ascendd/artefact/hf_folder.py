"""A Hugging Face folder: config.json and safetensors, in one file or many with an index."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ascendd.artefact.manifest import STATE_NAME
from ascendd.artefact.safetensors_file import DTYPES, SafetensorsFile
from ascendd.artefact.source import CheckpointSource
from ascendd.errors import ConversionFailed, ModelNotFound, ModelUnsupported, WeightsCorrupt

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "chat_template.jinja", "vocab.json", "merges.txt",
)  # fmt: skip
# tokenizer.model is SentencePiece, which the product does not run; a folder that has nothing else cannot serve text.


class HfFolder(CheckpointSource):
    """The folder that `save_pretrained` writes and model hubs hand out."""

    format = "huggingface"

    def __init__(self, path: Path) -> None:
        if not (path / "config.json").is_file():
            _refuse_unfinished(path)
            raise ModelNotFound(f"{path} holds no config.json, so it is not a model folder", path=str(path))
        self.path = path
        self._config = _read_object(path / "config.json")
        if quantisation := self._config.get("quantization_config"):
            method = quantisation.get("quant_method", "unknown") if isinstance(quantisation, dict) else quantisation
            raise ModelUnsupported(
                f"{path} is quantised by {method}; the engine runs plain float32, float16 or bfloat16 weights",
                remedy="Use the unquantised model, or a GGUF file of it, which is dequantised on conversion.",
            )
        self._files: dict[str, SafetensorsFile] = {}
        try:
            self._where = self._open_files()
        except BaseException:
            self.close()
            raise
        self._shapes = {name: file.tensors[name].shape for name, file in self._where.items()}

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor's shape, by name."""
        return self._shapes

    def dtype_of(self, name: str) -> torch.dtype:
        """Return the dtype of tensor `name` in its file."""
        stored = self._where[name].tensors[name].dtype
        if stored not in DTYPES or not DTYPES[stored].is_floating_point:
            raise ModelUnsupported(
                f"{self.path}: {name} is stored as {stored}; the engine runs float32, float16 or bfloat16 weights"
            )
        return DTYPES[stored]

    def read(self, name: str) -> torch.Tensor:
        """Return tensor `name` as a view of its mapped file."""
        return self._where[name].read(name)

    def config(self) -> dict[str, Any]:
        """Return config.json."""
        return dict(self._config)

    def generation_config(self) -> dict[str, Any]:
        """Return generation_config.json, empty when there is none."""
        path = self.path / "generation_config.json"
        return _read_object(path) if path.is_file() else {}

    def tokenizer_files(self) -> dict[str, bytes]:
        """Return the tokenizer's files; tokenizer.json is the one that serving needs."""
        return {name: (self.path / name).read_bytes() for name in TOKENIZER_FILES if (self.path / name).is_file()}

    def input_files(self) -> list[Path]:
        """Return all files that a conversion reads."""
        small = [self.path / name for name in ("config.json", "generation_config.json", INDEX_NAME, *TOKENIZER_FILES)]
        return [path for path in small if path.is_file()] + [file.path for file in self._files.values()]

    def close(self) -> None:
        """Close the weight files."""
        for file in self._files.values():
            file.close()

    def _open_files(self) -> dict[str, SafetensorsFile]:
        index_path = self.path / INDEX_NAME
        if index_path.is_file():
            return self._open_indexed(_read_object(index_path))
        if not (self.path / SINGLE_NAME).is_file():
            _refuse_unfinished(self.path)
            raise self._no_safetensors()
        file = self._open(SINGLE_NAME)
        return dict.fromkeys(file.tensors, file)

    def _open_indexed(self, index: dict[str, Any]) -> dict[str, SafetensorsFile]:
        weight_map = index.get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
            raise WeightsCorrupt(f"{self.path / INDEX_NAME} holds no weight_map", path=str(self.path))
        names = sorted(set(weight_map.values()))
        if missing := [name for name in names if not (self.path / name).is_file()]:
            raise WeightsCorrupt(
                f"{self.path}: {len(missing)} of {len(names)} weight files are missing: {', '.join(missing)}",
                remedy="Download the missing files into the folder.",
                missing=missing,
            )
        where = {tensor: self._open(name) for tensor, name in weight_map.items()}
        if lost := [tensor for tensor, file in where.items() if tensor not in file.tensors]:
            raise WeightsCorrupt(
                f"{self.path}: {weight_map[lost[0]]} does not hold {lost[0]}, which the index places there"
            )
        return where

    def _open(self, name: str) -> SafetensorsFile:
        if Path(name).name != name:
            raise WeightsCorrupt(f"{self.path / INDEX_NAME} names {name!r}, which is not a file of this folder")
        if name not in self._files:
            self._files[name] = SafetensorsFile(self.path / name)
        return self._files[name]

    def _no_safetensors(self) -> ModelNotFound | ModelUnsupported:
        pickled = sorted(path.name for path in self.path.glob("*.bin"))
        if pickled:
            return ModelUnsupported(
                f"{self.path} has its weights in {', '.join(pickled[:4])}; "
                "pickle files can run code when they are read and are refused",
                remedy="Load the model with transformers elsewhere, `save_pretrained(DIR)`, and use DIR.",
            )
        return ModelNotFound(f"{self.path} holds neither {SINGLE_NAME} nor {INDEX_NAME}", path=str(self.path))


def _refuse_unfinished(path: Path) -> None:
    if (path / STATE_NAME).is_file():
        raise ConversionFailed(
            f"{path} is an unfinished conversion",
            remedy="Run the same `ascendd convert` command again; it goes on where it stopped.",
        )


def _read_object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsCorrupt(f"{path} cannot be read: {error}", path=str(path)) from error
    if not isinstance(data, dict):
        raise WeightsCorrupt(f"{path} holds no JSON object", path=str(path))
    return data
