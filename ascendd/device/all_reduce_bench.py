"""
All-reduce over the chips of an instance, as a program of its own: `ascendd doctor --deep` runs it.

Reads one JSON object on standard input: {"world_size", "limit_s"}; ASCEND_RT_VISIBLE_DEVICES says which chips. Starts a
process for each rank and writes one JSON object: {"all_reduce": {"soc_name", "world_size", "bytes", "gb_per_s",
"wrong"}} or {"failed": {"rank", "step", "said", "waiting"}}. The first rank that fails is the cause; those that then
wait for it are ended. `wrong` names a rank with another sum than the right one, or is null.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from threading import Thread
from typing import Any

# A rank that waits for a dead one says so within this, or is ended.
_AFTERMATH_S = 3.0
_BYTES = 32 << 20
_MEASURE_S = 0.25


class Rank:
    """One process, its last step and its answer."""

    def __init__(self, rank: int, request: dict[str, Any]) -> None:
        self.rank, self.step, self.said = rank, "start", ""
        self.answer: dict[str, Any] | None = None
        command = [sys.executable, "-m", "ascendd.device.all_reduce_bench", "--rank"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({**request, "rank": rank}))
        self.process.stdin.close()
        self._readers = [Thread(target=self._read, daemon=True), Thread(target=self._read_errors, daemon=True)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                continue  # vendor libraries print to standard output, too
            if isinstance(message, dict) and "step" in message:
                self.step = message["step"]
            elif isinstance(message, dict) and "rank" in message:
                self.answer = message

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said = (self.said + line)[-2000:]

    def ended(self) -> bool:
        """Whether the process is gone and all it said is read."""
        return self.process.poll() is not None and not any(reader.is_alive() for reader in self._readers)

    @property
    def failure(self) -> str | None:
        """What went wrong, once it has ended."""
        if not self.ended() or (self.answer is not None and "fault" not in self.answer):
            return None
        if self.answer is not None:
            return str(self.answer["fault"])
        last = next((line for line in reversed(self.said.splitlines()) if line.strip()), "no output")
        return f"exit status {self.process.returncode}: {last.strip()}"


def launch(request: dict[str, Any]) -> dict[str, Any]:
    """Run all ranks until they are done, one fails, or the time is over."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        request = {**request, "port": probe.getsockname()[1]}
    ranks = [Rank(rank, request) for rank in range(request["world_size"])]
    deadline = time.monotonic() + float(request["limit_s"])
    try:
        while not all(rank.ended() for rank in ranks) and time.monotonic() < deadline:
            if any(rank.failure for rank in ranks):
                deadline = min(deadline, time.monotonic() + _AFTERMATH_S)
                first = next(rank for rank in ranks if rank.failure)
                _wait(ranks, deadline)
                return _failed(first, str(first.failure), ranks)
            time.sleep(0.02)
    finally:
        for rank in ranks:
            rank.process.kill()
    late = [rank for rank in ranks if not rank.ended()]
    broken = next((rank for rank in ranks if rank.failure and rank not in late), None)
    if broken is not None:
        return _failed(broken, str(broken.failure), ranks)
    if late:
        # The one that came least far is the one the others wait for.
        slowest = min(late, key=lambda rank: _STEPS.index(rank.step) if rank.step in _STEPS else -1)
        return _failed(slowest, f"no answer within {request['limit_s']:g} s", ranks)
    answers = [rank.answer for rank in ranks if rank.answer is not None]
    return {"all_reduce": {
        "soc_name": answers[0]["soc_name"],
        "world_size": len(ranks),
        "bytes": _BYTES,
        "gb_per_s": min(answer["gb_per_s"] for answer in answers),
        "wrong": next((f"rank {answer['rank']}: {answer['wrong']}" for answer in answers if answer["wrong"]), None),
    }}  # fmt: skip


def _wait(ranks: list[Rank], deadline: float) -> None:
    while time.monotonic() < deadline and not all(rank.ended() for rank in ranks):
        time.sleep(0.02)


def _failed(rank: Rank, said: str, ranks: list[Rank]) -> dict[str, Any]:
    waiting = [other.rank for other in ranks if other is not rank]
    return {"failed": {"rank": rank.rank, "step": rank.step, "said": said, "waiting": waiting}}


# --- one rank --------------------------------------------------------------------------------------------------------

_STEPS = ("start", "open the device", "join the group", "reduce once", "measure")


def run_rank(request: dict[str, Any]) -> dict[str, Any]:
    """Take part as one rank and return its answer."""
    import torch
    import torch.distributed as dist

    from ascendd.device.npu import NpuDevice

    rank, world_size = int(request["rank"]), int(request["world_size"])
    _say({"step": "open the device"})
    device = NpuDevice(rank)
    _say({"step": "join the group"})
    dist.init_process_group("hccl", init_method=f"tcp://127.0.0.1:{request['port']}", rank=rank, world_size=world_size)
    _say({"step": "reduce once"})
    # Integers that float32 holds exactly, another row for each rank: a part that is lost or taken twice shows.
    part = torch.arange(1000, dtype=torch.float32).repeat(_BYTES // 4 // 1000)
    numbers = (part * (rank + 1)).to(device.torch_device())
    dist.all_reduce(numbers)
    expected = part * (world_size * (world_size + 1) // 2)
    num_wrong = int((numbers.cpu() != expected).sum())
    _say({"step": "measure"})
    numbers.zero_()
    seconds = _seconds_of(lambda: dist.all_reduce(numbers), device)
    dist.destroy_process_group()
    return {
        "rank": rank,
        "soc_name": device.facts.name,
        # What each chip sends and receives in the best of algorithms, as such figures are published.
        "gb_per_s": 2 * (world_size - 1) / world_size * numbers.nbytes / seconds / 1e9,
        "wrong": f"{num_wrong} of {numbers.numel()} sums are wrong" if num_wrong else None,
    }


def _seconds_of(reduce: Any, device: Any) -> float:
    import torch

    def run(calls: int) -> float:
        torch.npu.synchronize()  # type: ignore[attr-defined]
        started = time.perf_counter()
        for _ in range(calls):
            reduce()
        torch.npu.synchronize()  # type: ignore[attr-defined]
        return (time.perf_counter() - started) / calls

    # Every rank must make as many calls, whatever time it took there.
    calls = torch.tensor([max(1, min(200, round(_MEASURE_S / run(1))))], dtype=torch.float32)
    shared = calls.to(device.torch_device())
    torch.distributed.broadcast(shared, 0)
    return run(int(shared.item()))


def _say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)  # noqa: T201 - the answer to the parent


def main() -> int:
    """Launch the ranks, or be one of them."""
    request = json.load(sys.stdin)
    if "--rank" not in sys.argv:
        _say(launch(request))
        return 0
    from ascendd.errors import AscenddError

    try:
        _say(run_rank(request))
    except AscenddError as error:
        _say({"rank": request["rank"], "fault": f"{error.code} {error.message}"})
        return 1
    except RuntimeError as error:
        from ascendd.device.npu_faults import classify

        fault = classify(error)
        said = str(error).strip().splitlines()[0][:300]
        _say({"rank": request["rank"], "fault": said if fault is None else f"{fault.code} {fault.message}"})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
