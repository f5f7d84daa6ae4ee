"""
A GGUF file read under Hugging Face names, dequantised one tensor at a time.

Facts of the format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Files of the `llama` architecture hold
the rows of q_proj and k_proj in the order of interleaved rotary pairs; here they come back in Hugging Face's order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType

from ascendd.artefact.gguf_config import build_config, build_generation_config
from ascendd.artefact.gguf_tokenizer import build_tokenizer_files
from ascendd.artefact.layout import Cut, Source
from ascendd.artefact.source import CheckpointSource
from ascendd.errors import ModelUnsupported, WeightsCorrupt

PLAIN_DTYPES = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}
_OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
# Rotary factors: gguf_config turns them into rope_scaling.
ROPE_FACTORS = "rope_freqs.weight"


class GgufFile(CheckpointSource):
    """One GGUF file; a model split over several must be merged first."""

    format = "gguf"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader: Any = _open(path)
        self.metadata = _metadata(self._reader)
        self._architecture = str(self.metadata.get("general.architecture", "(none named)"))
        if int(self.metadata.get("split.count", 1)) > 1:
            raise ModelUnsupported(
                f"{path} is one of {self.metadata['split.count']} parts of a split model",
                remedy="Merge the parts first: llama-gguf-split --merge FIRST_PART MERGED.gguf",
            )
        stored = {tensor.name: tensor for tensor in self._reader.tensors}
        rope_factors = np.array(stored.pop(ROPE_FACTORS).data) if ROPE_FACTORS in stored else None
        self._config = build_config(path, self.metadata, {name: _shape(t) for name, t in stored.items()}, rope_factors)
        self._tensors = {huggingface_name(name): tensor for name, tensor in stored.items()}
        self._shapes = {name: _shape(tensor) for name, tensor in self._tensors.items()}

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor's shape, by Hugging Face name; a name that has no counterpart stays as it is."""
        return self._shapes

    @property
    def quantisation(self) -> dict[str, int]:
        """Number of tensors per block-quantised type."""
        counts: dict[str, int] = {}
        for tensor in self._tensors.values():
            if tensor.tensor_type not in PLAIN_DTYPES:
                counts[tensor.tensor_type.name] = counts.get(tensor.tensor_type.name, 0) + 1
        return counts

    def dtype_of(self, name: str) -> torch.dtype:
        """Return the dtype of what `read` returns: float32 for quantised tensors."""
        return PLAIN_DTYPES.get(self._tensors[name].tensor_type, torch.float32)

    def main_dtype(self) -> torch.dtype:
        """Return float32 for a quantised file, else the dtype of most elements."""
        return torch.float32 if self.quantisation else super().main_dtype()

    def read(self, name: str) -> torch.Tensor:
        """Return tensor `name`, dequantised, its rows in Hugging Face's order."""
        return self.read_cut(Source(name, self._shapes[name]).whole())

    def read_cut(self, cut: Cut) -> torch.Tensor:
        """Return a part of a tensor, dequantising that part only where its blocks allow."""
        name, tensor = cut.source.name, self._tensors[cut.source.name]
        data, offset = tensor.data, cut.start
        if cut.axis < len(cut.source.shape) - 1:
            data, offset = data[cut.start : cut.stop], 0
        else:
            # Elements of the last axis are stored in blocks; plain numbers come as an array of elements already.
            block, num_bytes = gguf.GGML_QUANT_SIZES[tensor.tensor_type] if data.dtype == np.uint8 else (1, 1)
            if cut.start % block == 0 and cut.stop % block == 0:
                data, offset = data[..., cut.start // block * num_bytes : cut.stop // block * num_bytes], 0
        weight = self._decode(name, np.ascontiguousarray(data)).narrow(cut.axis, offset, cut.stop - cut.start)
        if self._architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            return _pairs_to_halves(weight, int(self._config["head_dim"]))
        return weight

    def config(self) -> dict[str, Any]:
        """Return a config.json built from the metadata."""
        return dict(self._config)

    def generation_config(self) -> dict[str, Any]:
        """Return a generation_config.json built from the metadata."""
        return build_generation_config(self.metadata)

    def tokenizer_files(self) -> dict[str, bytes]:
        """Return tokenizer.json and tokenizer_config.json built from the metadata."""
        return build_tokenizer_files(self.path, self.metadata)

    def input_files(self) -> list[Path]:
        """Return the file."""
        return [self.path]

    def close(self) -> None:
        """Unmap the file."""
        self._tensors = {}
        self._reader = None

    def _decode(self, name: str, data: np.ndarray[Any, Any]) -> torch.Tensor:
        kind = self._tensors[name].tensor_type
        if kind is GGMLQuantizationType.BF16:
            return torch.from_numpy(np.array(data).view(np.int16)).view(torch.bfloat16)
        if kind in PLAIN_DTYPES:
            return torch.from_numpy(np.array(data))
        return torch.from_numpy(np.asarray(self._dequantise(name, kind, data), dtype=np.float32))

    def _dequantise(self, name: str, kind: GGMLQuantizationType, data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        try:
            return gguf.dequantize(data, kind)
        except (NotImplementedError, KeyError) as error:
            raise ModelUnsupported(
                f"{self.path}: {name} is quantised as {kind.name}, which cannot be dequantised",
                remedy="Use another quantisation of the model, such as Q8_0, Q4_K_M or F16.",
            ) from error


def huggingface_name(name: str) -> str:
    """Return the Hugging Face name of a GGUF tensor, or `name` itself when the engine has no place for it."""
    if name in _OUTER_NAMES:
        return _OUTER_NAMES[name]
    match = _LAYER_NAME.fullmatch(name)
    if match is None or match[2] not in _LAYER_NAMES:
        return name
    return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"


def _open(path: Path) -> Any:
    try:
        reader = gguf.GGUFReader(path)
    except OSError as error:
        raise WeightsCorrupt(f"{path} cannot be read: {error.strerror}", path=str(path)) from error
    except (ValueError, KeyError, IndexError, OverflowError, MemoryError) as error:
        raise WeightsCorrupt(
            f"{path} is not a whole GGUF file: {error}", remedy="Download the file again.", path=str(path)
        ) from error
    if reader.byte_order != "I":
        raise ModelUnsupported(
            f"{path} was written for the other byte order", remedy="Download the little-endian file."
        )
    return reader


def _metadata(reader: Any) -> dict[str, Any]:
    """Return the key-value pairs, and drop the reader's own form of them: hundreds of MB for a large vocabulary."""
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    reader.fields.clear()
    return metadata


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in reversed(tensor.shape.tolist()))  # GGUF lists the fastest axis first


def _pairs_to_halves(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Reorder rows of each head from (x0, y0, x1, y1, ...) to (x0, x1, ..., y0, y1, ...)."""
    pairs = weight.reshape(-1, head_dim // 2, 2, *weight.shape[1:])  # [heads, head_dim / 2, 2, columns]
    return pairs.transpose(1, 2).reshape(weight.shape)
