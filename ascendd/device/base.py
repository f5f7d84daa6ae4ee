"""The Device interface. No torch at run time, so that everybody may import it; implementations bring their own."""

from __future__ import annotations

import contextlib
import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ascendd.config.plan import DeviceFacts
from ascendd.errors import AscenddError, ConfigInvalid, DeviceUnavailable

if TYPE_CHECKING:
    import torch

# y = x @ weight.T + bias for x [num_tokens, in_features]; made by Device.pack_linear.
Linear = Callable[["torch.Tensor"], "torch.Tensor"]


class Capability(enum.Enum):
    """What a device may or may not be able to do; asked by name, never by the kind of device."""

    GRAPHS = "captures decode graphs"
    COLLECTIVES = "runs collectives between processes"


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Memory of the device now, bytes."""

    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """
    Sizes of the paged KV cache of one rank; `num_blocks` includes the null block 0.

    A latent cache holds one vector of `head_dim` a token in place of K and V of each head; its num_kv_heads is 1.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    num_blocks: int
    dtype: str
    is_latent: bool = False


@dataclass(slots=True)
class DecodeGroup:
    """
    Rows of a step that attend from one new token each, padded to a common number of blocks.

    `rows` [B] indexes the flat token batch; `block_table` [B, num_blocks] int64; `mask` [B, num_blocks * block_size]
    is True where a slot holds a token of the row.
    """

    rows: torch.Tensor
    block_table: torch.Tensor
    mask: torch.Tensor


@dataclass(slots=True)
class PrefillChunk:
    """Tokens [begin, end) of the flat batch are one sequence's and stand at positions start .. start + end - begin."""

    begin: int
    end: int
    start: int
    block_ids: torch.Tensor


class AttentionForm(enum.Flag):
    """Which parts of an AttentionContext a device's kernels read; the others are not made."""

    DECODE_GROUPS = enum.auto()
    PREFILL_CHUNKS = enum.auto()
    # A SequenceTable of all sequences of the step, or of those alone that attend from one new token.
    SEQUENCE_TABLE = enum.auto()
    DECODE_TABLE = enum.auto()


@dataclass(slots=True)
class SequenceTable:
    """
    Sequences of a step in the order of the flat batch, for kernels that attend for all of them in one call.

    `query_ends[i]` is the number of new tokens up to and including sequence i, `kv_lengths[i]` how many tokens it has
    in the cache, the new ones included: both are lists, because the operators want them on the host. `block_table`
    [num_seqs, max_blocks] int32 is padded with the null block; `rows` [num_seqs] int64 are the tokens' rows of the
    flat batch where each sequence has one.
    """

    query_ends: list[int]
    kv_lengths: list[int]
    block_table: torch.Tensor
    rows: torch.Tensor | None = None


@dataclass(slots=True)
class AttentionContext:
    """
    Where the tokens of one step write and read in the paged cache.

    `slot_mapping` [num_tokens] int64: block id x block size + offset, for each token of the flat batch. Of the others
    there are those that the kernels read (Kernels.attention_form).
    """

    slot_mapping: torch.Tensor
    decode_groups: list[DecodeGroup] = field(default_factory=list)
    prefill_chunks: list[PrefillChunk] = field(default_factory=list)
    table: SequenceTable | None = None


@dataclass(slots=True)
class LatentUp:
    """
    What makes keys and values of all heads out of a latent: `weight` [heads, nope_dim + value_dim, kv_rank].

    The first `nope_dim` rows of a head make its key (W_UK), the others its value (W_UV).
    """

    weight: torch.Tensor
    nope_dim: int

    @property
    def key(self) -> torch.Tensor:
        """W_UK [heads, nope_dim, kv_rank], a view."""
        return self.weight[:, : self.nope_dim]

    @property
    def value(self) -> torch.Tensor:
        """W_UV [heads, value_dim, kv_rank], a view."""
        return self.weight[:, self.nope_dim :]


@dataclass(frozen=True, slots=True)
class KernelShapes:
    """
    The sizes that one rank's kernels will be called with, so that they can be chosen and proven before a model loads.

    `latent_*` are 0 for a model that caches K and V of each head, `num_experts` 0 for one without experts.
    """

    dtype: str
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    eps: float
    block_size: int
    latent_rank: int = 0
    latent_nope_dim: int = 0
    latent_value_dim: int = 0
    num_experts: int = 0
    num_experts_per_token: int = 0
    expert_size: int = 0


@dataclass(frozen=True, slots=True)
class KernelVerdict:
    """How a fused kernel did beside the reference; one that did not pass is not used."""

    kernel: str
    passed: bool
    detail: str


class Kernels(Protocol):
    """The operations that a device may have its own form of. kernels/reference.py is the executable specification."""

    def attention_form(self, *, is_latent: bool) -> AttentionForm:
        """Return which parts of an AttentionContext `paged_attention`, or `latent_attention`, reads."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Return x / rms(x) * weight over the last axis. x [num_tokens, hidden]."""

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (rms_norm(x + residual), x + residual); may overwrite both inputs."""

    def rope(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Rotate halves. x [num_tokens, heads, dim]; cos, sin [num_tokens, 1, dim]; may overwrite x."""

    def rope_interleaved(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Rotate pairs of neighbours; else as `rope`, whose cos and sin it takes."""

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        """Return silu(first half) * second half of the last axis; may overwrite x."""

    def store_kv(self, cache: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """Write key and value [num_tokens, kv_heads, head_dim] into the slots of one layer's cache."""

    def paged_attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        context: AttentionContext,
        scale: float,
    ) -> torch.Tensor:
        """
        Return causal attention of query [num_tokens, heads, head_dim] over all that its sequence has in the cache.

        key and value are the step's own, already stored; a prompt without a prefix may read them instead of the cache.
        """

    def store_latent(self, cache: torch.Tensor, latent: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """Write latent [num_tokens, kv_rank + rope_dim] into the slots of one layer's latent cache."""

    def latent_attention(
        self,
        query: torch.Tensor,
        latent: torch.Tensor,
        cache: torch.Tensor,
        context: AttentionContext,
        scale: float,
        up: LatentUp,
    ) -> torch.Tensor:
        """
        Return causal attention [num_tokens, heads, value_dim] over the latents that a sequence has in the cache.

        query [num_tokens, heads, nope_dim + rope_dim]; latent as in `store_latent`, the step's own, already stored.
        """

    def experts(
        self,
        x: torch.Tensor,
        expert_ids: torch.Tensor,
        weights: torch.Tensor,
        experts: Sequence[tuple[Linear, Linear]],
    ) -> torch.Tensor:
        """
        Return the weighted sum of the gated MLPs that each token chose. x [num_tokens, hidden].

        expert_ids, weights [num_tokens, num_per_token]; `experts` holds (gate_up, down) of each MLP.
        """

    def greedy(self, logits: torch.Tensor) -> list[int]:
        """Return the index of the largest logit of each row. logits [rows, vocab]."""


class CapturedGraph(Protocol):
    """One captured decode step; it reads and writes the tensors that it was captured with."""

    def replay(self, kv_lengths: list[int]) -> None:
        """Run it again for rows with `kv_lengths` tokens in the cache, the new one included."""


class GraphBackend(Protocol):
    """Captures what a device runs, into one memory pool that all graphs share."""

    def capture(self, work: Callable[[], torch.Tensor]) -> tuple[CapturedGraph, torch.Tensor]:
        """Return the graph of `work` and the tensor that it leaves its result in. Raises the vendor's error."""

    def close(self) -> None:
        """Give the pool back; no graph may be replayed afterwards."""


class Device(ABC):
    """One accelerator, or the CPU. All that differs between devices is behind these."""

    kernels: Kernels

    @property
    @abstractmethod
    def facts(self) -> DeviceFacts:
        """Kind, name, memory, dtypes; read when asked."""

    @abstractmethod
    def supports(self, capability: Capability) -> bool:
        """Whether the device can do this."""

    @abstractmethod
    def torch_device(self) -> str:
        """Return the device string that tensors are made with."""

    @abstractmethod
    def memory_info(self) -> MemoryInfo:
        """Free and total memory now."""

    def used_bytes(self) -> int:
        """Return the memory in use, by this process where the device can tell."""
        memory = self.memory_info()
        return memory.total_bytes - memory.free_bytes

    def collective_backend(self) -> str:
        """Return the backend of torch.distributed for tensors of this device; needs Capability.COLLECTIVES."""
        raise DeviceUnavailable(
            f"{self.facts.name} runs no collectives between processes",
            remedy="Set tensor_parallel_size and pipeline_parallel_size to 1.",
        )

    @abstractmethod
    def peak_memory(self, work: Callable[[], None]) -> int:
        """Run `work` and return by how many bytes it raised the memory in use at its highest."""

    @abstractmethod
    def empty_cache(self) -> None:
        """Give memory that no tensor uses back to the device."""

    @abstractmethod
    def allocate_kv(self, spec: KVCacheSpec) -> list[torch.Tensor]:
        """Return one cache tensor a layer in the layout that this device's kernels expect. Raises DeviceOutOfMemory."""

    @abstractmethod
    def pack_linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """Bring weight [out_features, in_features] into the fastest form here; the caller drops its own reference."""

    @abstractmethod
    def classify_fault(self, error: BaseException) -> AscenddError | None:
        """Return the typed fault that `error` stands for, or None if it is not the device's."""

    @contextlib.contextmanager
    def naming_faults(self) -> Iterator[None]:
        """Raise the error that leaves the block as the typed fault that it stands for, where it is the device's."""
        try:
            yield
        except AscenddError:
            raise
        except (RuntimeError, MemoryError) as error:
            fault = self.classify_fault(error)
            if fault is None:
                raise
            raise fault from error

    def prove_kernels(self, _shapes: KernelShapes) -> list[KernelVerdict]:
        """
        Run each fused kernel beside the reference on this device, and use the reference where they differ.

        For the time before anything is loaded. A device whose kernels need no proof returns nothing.
        """
        return []

    def use_weight_dtype(self, name: str) -> None:
        """Have `pack_linear` keep weights as `name` (float16, int8); raises ConfigInvalid where it has no kernels."""
        raise ConfigInvalid(
            f"$.engine.weight_dtype = {name}: {self.facts.name} has no kernels for such weights; write auto"
        )

    def pack_experts(
        self, _num: int, weights: Iterable[tuple[torch.Tensor, torch.Tensor]]
    ) -> Sequence[tuple[Linear, Linear]]:
        """Pack the (gate_up, down) weights of `num` experts, each [out_features, in_features], one after another."""
        return [(self.pack_linear(gate_up, None), self.pack_linear(down, None)) for gate_up, down in weights]

    def open_graphs(self) -> GraphBackend | None:
        """Return what captures and replays decode steps here, or None where the device has none."""
        return None
