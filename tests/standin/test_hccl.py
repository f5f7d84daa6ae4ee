"""torch.distributed with its real `hccl` backend between three processes, each on a stand-in device of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from loopback_ports import free_ports

if TYPE_CHECKING:
    from standin.machine import Machine
    from standin.shell import Shell

NUM_RANKS = 3
START = """
import torch, torch_npu, torch.distributed as dist
torch.npu.set_device({rank})
dist.init_process_group("hccl", init_method="tcp://127.0.0.1:{port}", rank={rank}, world_size={ranks})
rank = {rank}
def on_npu(*numbers, dtype=torch.float32):
    return torch.tensor(numbers, dtype=dtype, device="npu")
"""

Ranks = list["Shell"]


@contextlib.contextmanager
def _group(machine: Machine, folder: pytest.TempPathFactory, **more: str) -> Iterator[Ranks]:
    from standin.shell import Shell

    (port,) = free_ports(1)
    with contextlib.ExitStack() as stack:
        logs = folder.mktemp("ranks")
        shells = [
            stack.enter_context(Shell(machine, logs / f"rank{rank}", HCCL_BUFFSIZE="1", **more))
            for rank in range(NUM_RANKS)
        ]
        everywhere(shells, START, "None", start=port)
        yield shells


def everywhere(ranks: Ranks, code: str, expression: str = "None", *, start: int = 0) -> list[object]:
    """Run the same on every rank and return each one's value."""
    for rank, shell in enumerate(ranks):
        shell.send(code.format(rank=rank, port=start, ranks=NUM_RANKS) if start else code, expression)
    return [shell.receive() for shell in ranks]


@pytest.fixture(scope="module")
def hccl_machine(make_npu_machine: Callable[..., Machine], tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return make_npu_machine(tmp_path_factory.mktemp("npu"), num_devices=NUM_RANKS, heartbeat_s=0.3)


@pytest.fixture(scope="module")
def ranks(hccl_machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    with _group(hccl_machine, tmp_path_factory) as shells:
        yield shells


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64"])
def test_all_reduce(ranks: Ranks, dtype: str) -> None:
    """Every rank gets 1 + 2 + 3 in each dtype, in more elements than one piece of shared memory holds."""
    code = f"x = torch.full((70_000,), rank + 1, dtype=torch.{dtype}, device='npu')\ndist.all_reduce(x)"

    assert everywhere(ranks, code, "x.unique().tolist()") == [[6]] * NUM_RANKS


def test_largest(ranks: Ranks) -> None:
    """A maximum is taken element by element."""
    code = "x = on_npu(float(rank), float(-rank))\ndist.all_reduce(x, op=dist.ReduceOp.MAX)"

    assert everywhere(ranks, code, "x.tolist()") == [[2, 0]] * NUM_RANKS


def test_gather_scatter_and_broadcast(ranks: Ranks) -> None:
    """All-gather joins the ranks' parts in order, reduce-scatter leaves each its own, broadcast hands one to all."""
    code = """
gathered = torch.empty(6, device="npu")
dist.all_gather_single(gathered, on_npu(float(rank), 10.0 + rank))
mine = torch.empty(2, device="npu")
dist.reduce_scatter_single(mine, torch.arange(6.0, device="npu"))
told = on_npu(float(rank))
dist.broadcast(told, 1)
"""
    got = everywhere(ranks, code, "[gathered.tolist(), mine.tolist(), told.item()]")

    whole = [0, 10, 1, 11, 2, 12]
    assert got == [[whole, [0, 3], 1], [whole, [6, 9], 1], [whole, [12, 15], 1]]


def test_lists_of_tensors(ranks: Ranks) -> None:
    """All-gather into a list gives each rank's part in order; reduce-scatter of a list leaves each its own sum."""
    code = """
parts = [torch.empty(2, device="npu") for _ in range(3)]
dist.all_gather(parts, on_npu(float(rank), 10.0 + rank))
mine = torch.empty(1, device="npu")
dist.reduce_scatter(mine, [on_npu(1.0), on_npu(2.0), on_npu(3.0)])
"""
    got = everywhere(ranks, code, "[[part.tolist() for part in parts], mine.item()]")

    assert got == [[[[0, 10], [1, 11], [2, 12]], 3.0 * (rank + 1)] for rank in range(3)]


def test_send_and_receive(ranks: Ranks) -> None:
    """A message longer than the ring between two ranks arrives whole, while the third rank has no part in it."""
    code = """
x = torch.arange(100_000.0, device="npu") if rank == 0 else torch.zeros(100_000, device="npu")
if rank == 0:
    dist.send(x, 1)
if rank == 1:
    dist.recv(x, 0)
"""
    got = everywhere(ranks, code, "[x[1].item(), x[-1].item()]")

    assert got == [[1, 99_999], [1, 99_999], [0, 0]]


def test_group_of_some(ranks: Ranks) -> None:
    """A new group of ranks 0 and 2 has a communicator of its own; a barrier of all follows."""
    code = """
some = dist.new_group([0, 2])
x = on_npu(1.0)
if rank != 1:
    dist.all_reduce(x, group=some)
dist.barrier()
"""
    assert everywhere(ranks, code, "x.item()") == [2, 1, 2]


def test_collective_is_in_order_with_the_stream(ranks: Ranks) -> None:
    """What is computed behind a collective that a peer holds up uses its result, not what was there before."""
    late = "import time; time.sleep(0.3)\nx = on_npu(1.0)\ndist.all_reduce(x)\ny = x * 10"
    prompt = "x = on_npu(1.0)\nwork = dist.all_reduce(x, async_op=True)\nwork.wait()\ny = x * 10"
    for shell, code in zip(ranks, (late, prompt, prompt), strict=True):
        shell.send(code, "y.item()")

    assert [shell.receive() for shell in ranks] == [30, 30, 30]


def test_dead_peer_is_noticed_inside_a_collective(ranks: Ranks) -> None:
    """Survivors of a killed rank fail with 507048 and EI0002, which names the rank; keep this the last test of the group."""
    ranks[2].process.kill()
    code = """
x = on_npu(1.0)
try:
    dist.all_reduce(x)
    torch.npu.synchronize()
    text = "no error"
except RuntimeError as error:
    text = str(error)
"""
    for shell in ranks[:2]:
        shell.send(code, "text")
    texts = [str(shell.receive()) for shell in ranks[:2]]

    assert ["507048" in text and "EI0002" in text and "remote rank [2]" in text for text in texts] == [True, True]
