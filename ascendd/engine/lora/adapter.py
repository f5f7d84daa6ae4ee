"""
Adapter: the weights of one LoRA adapter in the form in which the layers add them.

PEFT stores `base_model.model.<module>.lora_A.weight` [r, in] and `.lora_B.weight` [out, r] for each module of the
checkpoint; the engine's projections are fused and cut, so the parts of one fused projection are gathered here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch

from ascendd.artefact.layout import Cut, RankTensor
from ascendd.artefact.safetensors_file import SafetensorsFile
from ascendd.engine.lora.adapter_config import WEIGHTS_NAME, AdapterConfig, read_adapter_config
from ascendd.errors import AdapterInvalid, ModelError

_PREFIX = "base_model.model."


@dataclass(frozen=True, slots=True)
class AdapterTarget:
    """
    A module of the checkpoint that adapters may change: the parts `cuts` of it lie in `fused` from row `offset` on.

    There are several where a module that is stored fused is cut over ranks.
    """

    module: str
    fused: str
    offset: int
    cuts: tuple[Cut, ...]


@dataclass(frozen=True, slots=True)
class LoraDelta:
    """
    What an adapter adds to one fused projection.

    `a` [rank x number of parts, in] holds the parts' A below each other. `parts`: where the rows of each part begin in
    the projection's output, and its B [out, rank], already multiplied by the adapter's scale.
    """

    rank: int
    a: torch.Tensor
    parts: tuple[tuple[int, torch.Tensor], ...]

    def to(self, device: str) -> LoraDelta:
        """Return the same on `device`; the tensors themselves where they are there already."""
        parts = tuple((offset, b.to(device)) for offset, b in self.parts)
        return LoraDelta(self.rank, self.a.to(device), parts)


@dataclass(frozen=True, slots=True)
class Adapter:
    """The deltas of one adapter by fused projection."""

    rank: int
    deltas: dict[str, LoraDelta]

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        tensors = [tensor for delta in self.deltas.values() for tensor in (delta.a, *(b for _, b in delta.parts))]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def targets_of(name: str, tensor: RankTensor) -> list[AdapterTarget]:
    """Return the modules whose weights are fused into projection `name`, whose weight is `tensor`."""
    targets, offset = [], 0
    for source, cuts in groupby(tensor.cuts, key=lambda cut: cut.source.name):
        parts = tuple(cuts)
        targets.append(AdapterTarget(source.removesuffix(".weight"), name, offset, parts))
        offset += sum(cut.shape[0] for cut in parts)
    return targets


def read_adapter(
    folder: Path,
    targets: Mapping[str, AdapterTarget],
    *,
    max_rank: int,
    dtype: torch.dtype,
    here: Collection[str] | None = None,
) -> Adapter:
    """
    Read the adapter in `folder` for a model whose changeable modules are `targets`, by their name.

    All of it is checked; of the fused projections only those in `here` are kept, which None means all of.
    Raises AdapterInvalid, naming the module with the shape found and the one expected.
    """
    config = read_adapter_config(folder, max_rank)
    try:
        file = SafetensorsFile(folder / WEIGHTS_NAME)
    except ModelError as error:
        raise AdapterInvalid(error.message, path=str(folder)) from error
    try:
        modules = _modules_in(file, targets)
        _check_coverage(modules, targets, config, str(file.path))
        deltas: dict[str, LoraDelta] = {}
        for fused in dict.fromkeys(target.fused for name, target in targets.items() if name in modules):
            parts = [target for name, target in targets.items() if target.fused == fused and name in modules]
            if here is None or fused in here:
                deltas[fused] = _delta(file, parts, config, dtype)
            else:
                _check_shapes(file, parts, config)
        return Adapter(config.rank, deltas)
    except ModelError as error:
        if isinstance(error, AdapterInvalid):
            raise
        raise AdapterInvalid(error.message, path=str(folder)) from error
    finally:
        file.close()


def _key(module: str, factor: str) -> str:
    return f"{_PREFIX}{module}.lora_{factor}.weight"


def _modules_in(file: SafetensorsFile, targets: Mapping[str, AdapterTarget]) -> frozenset[str]:
    """Return the modules that the file has weights for; each must be one of `targets`, with both factors."""
    found: dict[str, set[str]] = {}
    for key in sorted(file.tensors):
        module, separator, factor = key.removeprefix(_PREFIX).rpartition(".lora_")
        if not separator or factor not in ("A.weight", "B.weight") or not key.startswith(_PREFIX):
            raise AdapterInvalid(
                f"{file.path}: {key} is not a LoRA weight; expected {_key('<module>', 'A')} or {_key('<module>', 'B')}",
                module=key,
            )
        if module not in targets:
            kinds = sorted({name.rpartition(".")[2] for name in targets})
            raise AdapterInvalid(
                f"{file.path}: {module} is no module of this model that an adapter can change; those are "
                f"{', '.join(kinds)} of each of its layers",
                module=module,
            )
        found.setdefault(module, set()).add(factor[0])
    for module, factors in found.items():
        if len(factors) != 2:
            missing = "B" if "A" in factors else "A"
            raise AdapterInvalid(f"{file.path}: {module} has no lora_{missing}.weight", module=module)
    if not found:
        raise AdapterInvalid(f"{file.path} holds no tensors")
    return frozenset(found)


def _check_coverage(
    modules: frozenset[str], targets: Mapping[str, AdapterTarget], config: AdapterConfig, origin: str
) -> None:
    """Compare the tensors with target_modules, so that a truncated or mixed-up folder is found at load."""
    if config.target_modules is None:
        return

    def is_named(module: str) -> bool:
        return any(module == name or module.endswith(f".{name}") for name in config.target_modules or ())

    surplus = sorted(module for module in modules if not is_named(module))
    if surplus:
        named = ", ".join(sorted(config.target_modules))
        raise AdapterInvalid(f"{origin}: {surplus[0]} is not among target_modules ({named})", module=surplus[0])
    unused = sorted(
        name
        for name in config.target_modules
        if not any(module == name or module.endswith(f".{name}") for module in modules)
    )
    if unused:
        raise AdapterInvalid(f"{origin}: target_modules names {unused[0]}, but holds nothing for it", module=unused[0])
    missing = sorted(module for module in targets if is_named(module) and module not in modules)
    if missing and config.covers_all_layers:
        raise AdapterInvalid(f"{origin}: {missing[0]} is missing, which target_modules names", module=missing[0])


def _delta(file: SafetensorsFile, parts: list[AdapterTarget], config: AdapterConfig, dtype: torch.dtype) -> LoraDelta:
    a_rows, b_parts = [], []
    for target in parts:
        rows, columns = target.cuts[0].source.shape
        a = _tensor(file, target.module, "A", (config.rank, columns), dtype)
        b = _tensor(file, target.module, "B", (rows, config.rank), dtype, scale=config.scale)
        windows = [slice(cut.start, cut.stop) for cut in target.cuts]
        if target.cuts[0].axis == 0:
            b = torch.cat([b[window] for window in windows])
        else:
            a = a[:, windows[0]]
        a_rows.append(a)
        b_parts.append((target.offset, b.contiguous()))
    return LoraDelta(config.rank, torch.cat(a_rows).contiguous(), tuple(b_parts))


def _check_shapes(file: SafetensorsFile, parts: list[AdapterTarget], config: AdapterConfig) -> None:
    """Hold what another stage of the pipeline reads to the model, so that all ranks refuse an adapter alike."""
    for target in parts:
        rows, columns = target.cuts[0].source.shape
        _check_shape(file, target.module, "A", (config.rank, columns))
        _check_shape(file, target.module, "B", (rows, config.rank))


def _check_shape(file: SafetensorsFile, module: str, factor: str, shape: tuple[int, int]) -> None:
    found = file.tensors[_key(module, factor)].shape
    if found != shape:
        raise AdapterInvalid(
            f"{file.path}: {module}.lora_{factor} has shape {list(found)}, expected {list(shape)}",
            remedy="Use an adapter trained on this very model, whose config states its own rank.",
            module=module,
            found=str(list(found)),
            expected=str(list(shape)),
        )


def _tensor(
    file: SafetensorsFile, module: str, factor: str, shape: tuple[int, int], dtype: torch.dtype, *, scale: float = 1.0
) -> torch.Tensor:
    key = _key(module, factor)
    _check_shape(file, module, factor, shape)
    # Of its own: a view of the file would change, or end the process, when somebody changes the file.
    tensor = (file.read(key).to(torch.float32) * scale).to(dtype)
    if not bool(torch.isfinite(tensor).all()):
        name = str(dtype).removeprefix("torch.")
        raise AdapterInvalid(f"{file.path}: {module}.lora_{factor} holds values that {name} cannot hold", module=module)
    return tensor
