"""RankProcess: the worker process of one rank, its link, and the pipe on which it dumps its stacks."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

from ascendd.config.rank_place import RankPlace
from ascendd.errors import EngineFault
from ascendd.ipc.channel import BlockingChannel, socket_pair
from ascendd.ipc.rank_messages import FromRank, RankHeartbeat
from ascendd.ipc.rank_row import RankRow
from ascendd.ipc.stack_pipe import StackPipe

# All ranks are on one host, so nothing need listen beyond it.
_ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
COMMAND = (sys.executable, "-m", "ascendd", "_worker")


class RankProcess:
    """Started in the engine's own process group, so that what ends the engine's group ends the rank as well."""

    def __init__(self, place: RankPlace, store_fd: int, num_threads: int, command: tuple[str, ...] = COMMAND) -> None:
        ours, theirs = socket_pair()
        self._stacks = StackPipe()
        argv = [*command, "--control-fd", str(theirs.fileno()), "--stack-fd", str(self._stacks.writer)]
        env = {**os.environ, **_ENVIRONMENT, "OMP_NUM_THREADS": str(num_threads)}
        try:
            self._popen = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno(), self._stacks.writer, store_fd], env=env
            )
        except OSError as error:
            ours.close()
            self._stacks.close()
            raise EngineFault(f"the process of {place} cannot be started: {error}") from error
        finally:
            theirs.close()
        self._stacks.given()
        self.place = place
        self.pid = self._popen.pid
        self.channel: BlockingChannel[FromRank] = BlockingChannel(ours, FromRank)
        self.heartbeat = RankHeartbeat(0, 0.0, 0, "")
        self.heard_at_s = time.monotonic()

    def status(self, timeout_s: float = 0.0) -> int | None:
        """Return the exit status, negative for a signal, or None where the process lives after `timeout_s`."""
        try:
            return self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def row(self, now_s: float) -> RankRow:
        """Return what the rank last told, as the operator sees it; `now_s` is monotonic."""
        beat = self.heartbeat
        return RankRow(
            self.place.rank,
            self.pid,
            beat.step_seq,
            round(beat.inflight_s, 3),
            round(max(0.0, now_s - self.heard_at_s), 3),
            beat.collective,
        )

    def ask_for_stacks(self) -> None:
        """Have the process write the Python stack of each thread; it need not be able to run Python for that."""
        with contextlib.suppress(ProcessLookupError):
            self._popen.send_signal(signal.SIGUSR1)

    def read_stacks(self) -> str:
        """Return what of the stacks has come since the last call."""
        return self._stacks.read()

    def kill(self) -> None:
        """Send SIGKILL, which a stopped process obeys as well."""
        with contextlib.suppress(ProcessLookupError):
            self._popen.kill()

    def close(self) -> None:
        """Close the link and collect the process, which was told to end."""
        self.channel.close()
        self._stacks.close()
        self._popen.wait()
