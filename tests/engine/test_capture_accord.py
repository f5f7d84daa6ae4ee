"""What one tensor rank cannot capture, none captures: ranks as threads that exchange words over torch's own store."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch.distributed as dist

from ascendd.device.npu_faults import classify
from ascendd.engine.parallel.rank_group import TensorGroup
from ascendd.engine.runner.capture_accord import CaptureAccord
from ascendd.engine.runner.graph_runner import fewer_buckets
from ascendd.errors import AscenddError, DeviceLost, DeviceOutOfMemory, GraphCaptureFailed

STREAMS = "aclrtCreateStream, error code is 207005"
MEMORY = "NPU out of memory. Tried to allocate 2.00 MiB"
NEVER = GraphCaptureFailed("an old CANN", remedy="Upgrade CANN.", cannot_capture=True)


@pytest.fixture
def accords(tmp_path: Path) -> list[CaptureAccord]:
    """Those of three ranks, each with a store of its own over one file, as processes have."""
    made = []
    for rank in range(3):
        store = dist.PrefixStore("words/0", dist.FileStore(str(tmp_path / "store"), 3))  # type: ignore[attr-defined]
        made.append(CaptureAccord(TensorGroup(rank, 3, store=store), classify))
    return made


def doing(error: str | Exception | None) -> Callable[[], None]:
    def work() -> None:
        if error is not None:
            raise error if isinstance(error, Exception) else RuntimeError(error)

    return work


def attempt(accords: list[CaptureAccord], *errors: str | Exception | None) -> list[AscenddError | None]:
    """Let each rank meet its error; return what each is told."""
    with ThreadPoolExecutor(3) as pool:
        told = [pool.submit(accord.attempt, doing(error)) for accord, error in zip(accords, errors, strict=True)]
        return [one.result(timeout=90) for one in told]


@pytest.mark.parametrize(
    ("errors", "left", "reason"),
    [
        ((None, STREAMS, None), [2, 8], "207005"),
        ((None, None, MEMORY), [1, 2], "out of memory"),
        ((STREAMS, MEMORY, None), [1, 2], "out of memory"),  # the graver of two
        ((MEMORY, STREAMS, NEVER), [], "an old CANN"),
    ],
)
def test_all_ranks_retreat_as_far_as_the_one_that_fails_most(accords, errors, left, reason) -> None:
    """The same buckets are left on each, and each names the rank whose failure it is not."""
    told = attempt(accords, *errors)

    assert [fewer_buckets([1, 2, 4, 8], fault) for fault in told] == [left] * 3
    assert all(reason in fault.message for fault in told)
    assert sum(fault.message.startswith("tensor rank ") for fault in told) == 2


def test_ranks_that_all_can_go_on_and_later_words_are_not_earlier_ones(accords) -> None:
    """An attempt that succeeds everywhere, one that fails, and one that succeeds again."""
    rounds = [
        attempt(accords, None, None, None),
        attempt(accords, MEMORY, None, None),
        attempt(accords, None, None, None),
    ]

    assert rounds[0] == rounds[2] == [None] * 3
    assert [type(fault) for fault in rounds[1]] == [DeviceOutOfMemory] * 3


def test_one_rank_without_the_kernels_keeps_all_from_capturing(accords) -> None:
    """Its reason is told by all, with its rank by the others."""
    with ThreadPoolExecutor(3) as pool:
        told = list(pool.map(CaptureAccord.may_capture, accords, ["", "attention is computed by the reference", ""]))

    assert told[1] == "attention is computed by the reference"
    assert told[0] == told[2] == f"tensor rank 1 of 3: {told[1]}"


def test_a_failure_inside_a_collective_ends_the_rank(accords) -> None:
    """Its peers wait in the collective and can be told nothing: the group ends with the cause, and a lost device always."""
    with pytest.raises(DeviceOutOfMemory):
        accords[0].attempt_with_peers(doing(MEMORY))
    with pytest.raises(DeviceLost):
        accords[0].attempt(doing("ACL stream synchronize failed, error code:507010"))
    with pytest.raises(RuntimeError, match="shapes"):
        accords[0].attempt(doing("mat1 and mat2 shapes cannot be multiplied"))

    assert CaptureAccord(TensorGroup(), classify).attempt_with_peers(doing(None)) is None
