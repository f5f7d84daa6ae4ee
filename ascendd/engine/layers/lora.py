"""
LoRA (Hu et al., 2021) beside the packed projections: y += scale * (x A^T) B^T for the rows of each active adapter.

The base weights stay packed and shared; a delta costs two small products over its own rows only, and rows without an
adapter are not touched. Wrapped in one place, WeightScope.linear, so models know nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.nn import functional

from ascendd.artefact.layout import RankTensor
from ascendd.device.base import Linear
from ascendd.engine.lora.adapter import Adapter, AdapterTarget, LoraDelta, read_adapter, targets_of
from ascendd.engine.lora.slot_pool import SlotPool

# Matrices that are no projections of the step's rows: a lookup, the router, and what latent attention multiplies by.
_NO_PROJECTIONS = ("embed_tokens", "gate", "kv_b_proj")


def _is_target(name: str) -> bool:
    """Whether adapters may change the matrix `name`."""
    # The head sees only the rows that sample, an expert only the rows routed to it: a step's rows are not theirs.
    return name != "lm_head" and ".experts." not in name and name.rpartition(".")[2] not in _NO_PROJECTIONS


def _targets_in(layout: Mapping[str, RankTensor]) -> dict[str, AdapterTarget]:
    targets: dict[str, AdapterTarget] = {}
    for key, tensor in layout.items():
        name = key.removesuffix(".weight")
        if key.endswith(".weight") and len(tensor.shape) > 1 and _is_target(name):
            for target in targets_of(name, tensor):
                assert target.module not in targets, f"{target.module} is in two projections"
                targets[target.module] = target
    return targets


@dataclass(slots=True)
class LoraStep:
    """The rows of the flat batch that each slot changes in this step: (slot, rows [n] int64). Empty: none does."""

    groups: list[tuple[int, torch.Tensor]] = field(default_factory=list)


class LoraLinear:
    """One fused projection with a delta in some of its slots."""

    def __init__(self, linear: Linear, num_slots: int, step: LoraStep) -> None:
        self._linear = linear
        self._step = step
        self.slots: list[LoraDelta | None] = [None] * num_slots

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map x [num_tokens, in] to [num_tokens, out]."""
        y = self._linear(x)
        for slot, rows in self._step.groups:
            delta = self.slots[slot]
            if delta is None:
                continue
            inner = functional.linear(x.index_select(0, rows), delta.a)
            for index, (offset, b) in enumerate(delta.parts):
                part = inner[:, index * delta.rank : (index + 1) * delta.rank]
                y[:, offset : offset + b.shape[0]].index_add_(0, rows, functional.linear(part, b))
        return y


class LoraLayers:
    """
    All wrapped projections of one rank, the adapters in host memory, and the slots that a step uses.

    `layout` is that of all layers, of which a stage of a pipeline wraps its own: an adapter is for the whole model.
    """

    def __init__(
        self, layout: Mapping[str, RankTensor], *, num_slots: int, max_rank: int, dtype: torch.dtype, device: str
    ) -> None:
        self._max_rank = max_rank
        self._dtype = dtype
        self._device = device
        self._linears: dict[str, LoraLinear] = {}
        self._targets = _targets_in(layout)
        self._adapters: dict[int, Adapter] = {}
        self._slots = SlotPool(num_slots)
        self._step = LoraStep()

    def wrap(self, name: str, linear: Linear) -> Linear:
        """Return `linear`, which is the projection `name`, with room for deltas where adapters may change it."""
        if not _is_target(name):
            return linear
        self._linears[name] = LoraLinear(linear, self._slots.num_slots, self._step)
        return self._linears[name]

    def load(self, adapter_id: int, folder: Path) -> int:
        """Read the adapter in `folder` into host memory and return its bytes. Raises AdapterInvalid."""
        adapter = read_adapter(folder, self._targets, max_rank=self._max_rank, dtype=self._dtype, here=self._linears)
        self._adapters[adapter_id] = adapter
        return adapter.num_bytes

    def drop(self, adapter_id: int) -> None:
        """Forget an adapter and empty its slot."""
        del self._adapters[adapter_id]
        slot = self._slots.drop(adapter_id)
        if slot is not None:
            for linear in self._linears.values():
                linear.slots[slot] = None

    def set_step(self, spans: list[tuple[int, int]]) -> None:
        """
        Say whose rows the next forward pass has: (adapter id, number of rows) from the first row on, 0 for no adapter.

        The different adapters are at most as many as there are slots.
        """
        self._step.groups.clear()
        if not any(adapter_id for adapter_id, _ in spans):
            return
        rows: dict[int, list[torch.Tensor]] = {}
        begin = 0
        for adapter_id, num_rows in spans:
            if adapter_id:
                rows.setdefault(adapter_id, []).append(torch.arange(begin, begin + num_rows))
            begin += num_rows
        for adapter_id, slot in self._slots.take(rows):
            deltas = self._adapters[adapter_id].deltas
            for name, linear in self._linears.items():
                delta = deltas.get(name)
                linear.slots[slot] = None if delta is None else delta.to(self._device)
        for adapter_id, parts in rows.items():
            self._step.groups.append((self._slots.slot_of(adapter_id), torch.cat(parts).to(self._device)))
