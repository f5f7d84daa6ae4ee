"""The groups of ranks of one engine: tensor groups within a stage, and the way from stage to stage."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import torch

from ascendd.config.rank_place import RankPlace
from ascendd.engine.parallel.rank_progress import RankProgress
from ascendd.errors import CollectiveTimeout

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch._C._distributed_c10d import Store

T = TypeVar("T")


class TensorGroup:
    """
    The ranks that hold slices of the same layers; of one rank it does nothing and costs nothing.

    Raises CollectiveTimeout where a peer is gone or does not come.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        handle: dist.ProcessGroup | None = None,
        progress: RankProgress | None = None,
        store: Store | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self._handle = handle
        self._progress = progress or RankProgress()
        self._store = store
        self._num_exchanges = 0

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Add up `x` over the ranks, in place, and return it."""
        if self.size > 1:
            import torch.distributed as dist

            x = x.contiguous()
            guarded(self._progress, "all_reduce", lambda: dist.all_reduce(x, group=self._handle))
        return x

    def all_gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return `x` of every rank, by rank; all have the same shape."""
        if self.size == 1:
            return [x]
        import torch.distributed as dist

        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(self.size)]
        guarded(self._progress, "all_gather", lambda: dist.all_gather(parts, x, group=self._handle))
        return parts

    def exchange(self, word: str) -> list[str]:
        """Return the word of every rank, by rank: from host to host, so that one whose device fails can say so."""
        if self.size == 1:
            return [word]
        assert self._store is not None
        store, number = self._store, self._num_exchanges
        self._num_exchanges += 1

        def meet() -> list[str]:
            store.set(f"{number}/{self.rank}", word)
            return [store.get(f"{number}/{rank}").decode() for rank in range(self.size)]

        return guarded(self._progress, "exchange", meet)


class RankGroup:
    """One rank's view of all ranks: its place, its tensor group, its neighbours in the pipeline."""

    def __init__(
        self, place: RankPlace | None = None, tensor: TensorGroup | None = None, progress: RankProgress | None = None
    ) -> None:
        self.place = place or RankPlace()
        self.tensor = tensor or TensorGroup()
        self._progress = progress or RankProgress()
        self._sending: tuple[dist.Work, torch.Tensor] | None = None

    def send(self, x: torch.Tensor, residual: torch.Tensor) -> None:
        """
        Pass both, [num_tokens, hidden] each, to the next stage, and return while they travel.

        The next send waits for the one before, so a stage is at most one step ahead of what the next one has taken.
        """
        import torch.distributed as dist

        self._finish_sending()
        both, peer = torch.stack((x, residual)), self.place.rank + self.place.tp_size
        work = guarded(self._progress, "send", lambda: dist.isend(both, peer))
        assert work is not None
        self._sending = work, both

    def receive(
        self, num_tokens: int, hidden: int, dtype: torch.dtype, device: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return x and residual of the stage before, [num_tokens, hidden] each."""
        import torch.distributed as dist

        both, peer = (
            torch.empty((2, num_tokens, hidden), dtype=dtype, device=device),
            self.place.rank - self.place.tp_size,
        )
        guarded(self._progress, "receive", lambda: dist.recv(both, peer))
        return both[0], both[1]

    def _finish_sending(self) -> None:
        if self._sending is not None:
            guarded(self._progress, "send", self._sending[0].wait)
            self._sending = None


def join_group(
    place: RankPlace, *, backend: str, store_path: str, timeout_s: float, progress: RankProgress
) -> RankGroup:
    """
    Meet the other ranks and return the group; every rank calls this once.

    `store_path` names the private file through which the ranks find each other. Raises CollectiveTimeout where not all
    come within `timeout_s`, which later bounds each collective as well.
    """
    import torch.distributed as dist

    timeout = datetime.timedelta(seconds=timeout_s)
    store = dist.FileStore(  # type: ignore[attr-defined]
        store_path, place.world_size
    )
    store.set_timeout(timeout)

    def meet() -> list[dist.ProcessGroup]:
        dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.world_size, timeout=timeout)
        # Every rank makes every group, in one order; that is torch's rule.
        return [
            dist.new_group(list(range(stage * place.tp_size, (stage + 1) * place.tp_size)), timeout=timeout)
            for stage in range(place.pp_size)
        ]

    groups = guarded(progress, "rendezvous", meet)
    words = dist.PrefixStore(f"words/{place.pp_rank}", store)  # type: ignore[attr-defined]
    tensor = TensorGroup(place.tp_rank, place.tp_size, groups[place.pp_rank], progress, words)
    return RankGroup(place, tensor, progress)


def guarded(progress: RankProgress, name: str, collective: Callable[[], T]) -> T:
    """Run `collective`; its failure is told as CollectiveTimeout, unless the device itself says what is wrong."""
    progress.enter(name)
    try:
        return collective()
    except RuntimeError as error:  # torch.distributed's errors are all of this class
        fault = progress.classify(error)
        if fault is not None:
            raise fault from error
        text = str(error).strip().splitlines()
        raise CollectiveTimeout(
            f"{name} with the other ranks failed: {text[0] if text else type(error).__name__}"
        ) from error
    finally:
        progress.leave()
