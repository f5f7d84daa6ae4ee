"""
RankWeights: the fused tensors of one rank, whatever the folder is.

An artefact's rank file is mapped as it is; a Hugging Face folder is fused and cut on the fly, tensor by tensor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import torch

from ascendd.artefact.hf_folder import HfFolder
from ascendd.artefact.layout import RankTensor, rank_layout, stage_layout
from ascendd.artefact.manifest import (
    Manifest,
    check_complete,
    check_tensor_parallel_size,
    is_artefact,
    rank_file_name,
    read_manifest,
)
from ascendd.artefact.safetensors_file import DTYPE_NAMES, SafetensorsFile
from ascendd.artefact.safetensors_header import ELEMENT_BYTES
from ascendd.artefact.source import CheckpointSource
from ascendd.config.model_facts import ModelFacts
from ascendd.config.rank_place import RankPlace
from ascendd.errors import ModelNotFound, WeightsCorrupt

if TYPE_CHECKING:
    from typing_extensions import Self


class RankWeights(ABC):
    """The weights of one rank; read each tensor once, convert and pack it, let it go."""

    def __init__(self, layout: list[RankTensor]) -> None:
        self.layout = {tensor.name: tensor for tensor in layout}

    @property
    def names(self) -> list[str]:
        """Fused names in the order in which the layers use them."""
        return list(self.layout)

    @property
    @abstractmethod
    def total_bytes(self) -> int:
        """Bytes of all tensors in their stored dtype."""

    @abstractmethod
    def read(self, name: str) -> torch.Tensor:
        """
        Return tensor `name` on the CPU in its stored dtype, contiguous or not.

        It may be a private view of a mapped file: writing to it is safe and stays in this process. It outlives close().
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of open files."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ArtefactWeights(RankWeights):
    """One rank file of an artefact; it holds all layers, of which a stage of a pipeline reads its own."""

    def __init__(
        self, folder: Path, manifest: Manifest, layout: list[RankTensor], whole: list[RankTensor], tp_rank: int
    ) -> None:
        super().__init__(layout)
        check_complete(folder, manifest)
        self._file = SafetensorsFile(folder / rank_file_name(tp_rank, manifest.tensor_parallel_size))
        try:
            self._check_layout(whole)
        except WeightsCorrupt:
            self.close()
            raise

    @property
    def total_bytes(self) -> int:
        """Bytes of this rank's tensors in the file."""
        return sum(self._file.tensors[name].num_bytes for name in self.layout)

    def read(self, name: str) -> torch.Tensor:
        """Return tensor `name` as a view of the mapped file."""
        return self._file.read(name)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _check_layout(self, whole: list[RankTensor]) -> None:
        stored = {name: tensor.shape for name, tensor in self._file.tensors.items()}
        wanted = {tensor.name: tensor.shape for tensor in whole}
        different = sorted(name for name in stored.keys() | wanted.keys() if stored.get(name) != wanted.get(name))
        if different:
            name = different[0]
            raise WeightsCorrupt(
                f"{self._file.path}: {len(different)} tensors differ from what config.json implies, first {name}: "
                f"shape {_shape(stored.get(name))} stored, {_shape(wanted.get(name))} expected",
                path=str(self._file.path),
            )


class SourceWeights(RankWeights):
    """A checkpoint in Hugging Face form, fused and cut as it is read."""

    def __init__(self, source: CheckpointSource, facts: ModelFacts, layout: list[RankTensor]) -> None:
        super().__init__(layout)
        self._source = source
        source.check_complete(facts)

    @property
    def total_bytes(self) -> int:
        """Bytes of all fused tensors of this rank."""
        return sum(tensor.num_elements * self._element_bytes(tensor) for tensor in self.layout.values())

    def read(self, name: str) -> torch.Tensor:
        """Return tensor `name`; a copy where parts are joined or padded, else a view."""
        return self._source.read_rank_tensor(self.layout[name])

    def close(self) -> None:
        """Close the checkpoint."""
        self._source.close()

    def _element_bytes(self, tensor: RankTensor) -> int:
        return max(ELEMENT_BYTES[DTYPE_NAMES[self._source.dtype_of(cut.source.name)]] for cut in tensor.cuts)


def open_rank_weights(
    folder: Path, facts: ModelFacts, tp_rank: int = 0, tp_size: int = 1, *, pp_rank: int = 0, pp_size: int = 1
) -> RankWeights:
    """
    Open the weights of rank `tp_rank` of `tp_size` in stage `pp_rank` of `pp_size`.

    Raises ModelError for an artefact packed for another size, WeightsCorrupt for missing, surplus or misshapen tensors,
    ModelUnsupported for a size that does not fit the model, ModelNotFound.
    """
    whole = rank_layout(facts, tp_rank, tp_size)
    place = RankPlace(tp_rank=tp_rank, tp_size=tp_size, pp_rank=pp_rank, pp_size=pp_size)
    layout = stage_layout(facts, place) if pp_size > 1 else whole
    if not folder.is_dir():
        raise ModelNotFound(f"{folder} {'is not a folder' if folder.exists() else 'does not exist'}", path=str(folder))
    if is_artefact(folder):
        manifest = read_manifest(folder)
        check_tensor_parallel_size(folder, manifest, tp_size)
        return ArtefactWeights(folder, manifest, layout, whole, tp_rank)
    source = HfFolder(folder)
    try:
        return SourceWeights(source, facts, layout)
    except BaseException:
        source.close()
        raise


def _shape(shape: tuple[int, ...] | None) -> str:
    return "nothing" if shape is None else str(list(shape))
