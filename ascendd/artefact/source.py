"""CheckpointSource: a model as someone else wrote it, read one tensor at a time under Hugging Face names."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from ascendd.artefact.layout import Cut, RankTensor, fused_layout
from ascendd.config.model_facts import ModelFacts, facts_from_config
from ascendd.errors import ModelNotFound, WeightsCorrupt

if TYPE_CHECKING:
    from typing_extensions import Self

# Buffers that old checkpoints carry though they are computed from the configuration.
_IGNORED = re.compile(r"(^|\.)rotary_emb\.inv_freq$|\.attn\.(masked_)?bias$")
_MAX_LISTED = 8


class CheckpointSource(ABC):
    """A checkpoint that is only read. Closing it leaves tensors that were read valid."""

    format: str
    path: Path

    @property
    @abstractmethod
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor's shape, by Hugging Face name."""

    @abstractmethod
    def dtype_of(self, name: str) -> torch.dtype:
        """Return the dtype of what `read` returns for tensor `name`."""

    @abstractmethod
    def read(self, name: str) -> torch.Tensor:
        """Return tensor `name` whole, on the CPU; it may be a view of a mapped file."""

    def read_cut(self, cut: Cut) -> torch.Tensor:
        """Return a part of one tensor; it may be a view."""
        return self.read(cut.source.name).narrow(cut.axis, cut.start, cut.stop - cut.start)

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Return config.json."""

    @abstractmethod
    def generation_config(self) -> dict[str, Any]:
        """Return generation_config.json, empty when the source has none."""

    @abstractmethod
    def tokenizer_files(self) -> dict[str, bytes]:
        """Return the contents of the tokenizer's files by file name."""

    @abstractmethod
    def input_files(self) -> list[Path]:
        """Return the files that make up the checkpoint."""

    @property
    def quantisation(self) -> dict[str, int]:
        """Number of tensors per block-quantised type; empty for a checkpoint of plain numbers."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Let go of open files."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def facts(self) -> ModelFacts:
        """Return the model's facts. Raises ModelUnsupported or WeightsCorrupt."""
        return facts_from_config(self.config(), self.generation_config(), origin=str(self.path))

    def main_dtype(self) -> torch.dtype:
        """Return the dtype of most bytes; norms are often kept wider than the rest."""
        num_elements: dict[torch.dtype, int] = {}
        for name, shape in self.shapes.items():
            dtype = self.dtype_of(name)
            num_elements[dtype] = num_elements.get(dtype, 0) + int(torch.Size(shape).numel())
        return max(num_elements, key=lambda dtype: num_elements[dtype])

    def check_complete(self, facts: ModelFacts) -> None:
        """Raise WeightsCorrupt unless the tensors are exactly those of the architecture, in its shapes."""
        wanted = {source.name: source.shape for tensor in fused_layout(facts) for source in tensor.sources}
        present = {name: shape for name, shape in self.shapes.items() if not _IGNORED.search(name)}
        if facts.tie_word_embeddings and "lm_head.weight" in present:
            self._check_tied_head()
            del present["lm_head.weight"]
        problems = []
        if missing := [name for name in wanted if name not in present]:
            problems.append(f"{len(missing)} tensors are missing: {_listed(missing)}")
        if unused := [name for name in present if name not in wanted]:
            problems.append(f"{len(unused)} tensors are not part of {facts.architecture}: {_listed(unused)}")
        for name, shape in present.items():
            if name in wanted and shape != wanted[name]:
                problems.append(f"{name} has shape {list(shape)}, config.json implies {list(wanted[name])}")
        if problems:
            shown = problems[:_MAX_LISTED]
            rest = f"\n  and {len(problems) - len(shown)} more" if len(problems) > len(shown) else ""
            raise WeightsCorrupt(
                f"{self.path} does not hold the weights that its configuration describes:\n  "
                + "\n  ".join(shown)
                + rest,
                remedy="Download the model again, config.json included; both must be of the same revision.",
                path=str(self.path),
            )

    def read_rank_tensor(self, tensor: RankTensor) -> torch.Tensor:
        """Return a fused tensor as one rank holds it, in the stored dtype; a view where nothing has to be joined."""
        parts = [self.read_cut(cut) for cut in tensor.cuts]
        rows = sum(part.shape[0] for part in parts)
        if rows < tensor.shape[0]:
            parts.append(torch.zeros((tensor.shape[0] - rows, *tensor.shape[1:]), dtype=parts[0].dtype))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _check_tied_head(self) -> None:
        if not torch.equal(self.read("lm_head.weight"), self.read("model.embed_tokens.weight")):
            raise WeightsCorrupt(
                f"{self.path}: config.json says tie_word_embeddings: true, "
                "yet lm_head.weight differs from model.embed_tokens.weight",
                remedy="Set tie_word_embeddings to false in config.json if the head was trained on its own.",
                path=str(self.path),
            )


def open_source(path: Path) -> CheckpointSource:
    """Open a Hugging Face folder or a .gguf file. Raises ModelNotFound, ModelUnsupported or WeightsCorrupt."""
    if path.suffix.lower() == ".gguf" and path.is_file():
        from ascendd.artefact.gguf_file import GgufFile

        return GgufFile(path)
    if path.is_dir():
        from ascendd.artefact.hf_folder import HfFolder

        return HfFolder(path)
    what = "is neither a folder nor a .gguf file" if path.exists() else "does not exist"
    raise ModelNotFound(
        f"{path} {what}", remedy="Give a Hugging Face folder with config.json, or a .gguf file.", path=str(path)
    )


def _listed(names: list[str]) -> str:
    rest = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + rest
