"""WeightScope: the weights below one name, brought to dtype and device one tensor at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

import torch

from ascendd.device.base import Device, Linear
from ascendd.engine.parallel.rank_group import TensorGroup


class WeightSource(Protocol):
    """Where fused tensors of one rank come from (artefact.rank_weights.RankWeights)."""

    @property
    def names(self) -> Collection[str]:
        """Fused names."""

    def read(self, name: str) -> torch.Tensor:
        """Return one tensor on the CPU in its stored dtype; it may be a view of the file."""


class WeightScope:
    """
    Weights whose names begin with `prefix`.

    `on_read` is told the bytes of each tensor taken, which is how loading shows progress. `wrap_linear(name, linear)`
    may put something around each packed projection, as LoRA does. Peak memory is the model plus one tensor, since every
    tensor is converted and packed before the next is read. `group` are the ranks that share the layers.
    """

    def __init__(
        self,
        source: WeightSource,
        device: Device,
        dtype: torch.dtype,
        prefix: str = "",
        *,
        on_read: Callable[[str, int], None] | None = None,
        wrap_linear: Callable[[str, Linear], Linear] | None = None,
        group: TensorGroup | None = None,
    ) -> None:
        self._source = source
        self.device = device
        self.dtype = dtype
        self._prefix = prefix
        self._on_read = on_read
        self._wrap_linear = wrap_linear
        self.group = group or TensorGroup()

    def child(self, name: str) -> WeightScope:
        """Return the scope below `name`."""
        prefix = f"{self._prefix}{name}."
        return WeightScope(
            self._source,
            self.device,
            self.dtype,
            prefix,
            on_read=self._on_read,
            wrap_linear=self._wrap_linear,
            group=self.group,
        )

    def has(self, name: str) -> bool:
        """Whether a tensor of this name exists."""
        return self._prefix + name in self._source.names

    def tensor(self, name: str) -> torch.Tensor:
        """Return a tensor of its own (never a view of the file) in the engine's dtype on the device."""
        stored = self._source.read(self._prefix + name)
        if self._on_read is not None:
            self._on_read(self._prefix + name, stored.numel() * stored.element_size())
        tensor = stored.to(device=self.device.torch_device(), dtype=self.dtype)
        return tensor.clone() if tensor.data_ptr() == stored.data_ptr() else tensor

    def linear(self, name: str) -> Linear:
        """
        Return the projection `name`, with its bias where there is one, packed for the device.

        On a rank of several it is the rank's slice: output features where the model's layout cuts columns, and where it
        cuts rows a sum that is not whole until the ranks' are added (`row_linear`).
        """
        bias = self.tensor(f"{name}.bias") if self.has(f"{name}.bias") else None
        linear = self.device.pack_linear(self.tensor(f"{name}.weight"), bias)
        return linear if self._wrap_linear is None else self._wrap_linear(self._prefix + name, linear)

    def row_linear(self, name: str) -> Linear:
        """Return the projection `name`, cut along its input features, whose results are added up over the ranks."""
        linear, group = self.linear(name), self.group
        if group.size == 1:
            return linear
        return lambda x: group.all_reduce(linear(x))
