"""ProcessTable: the processes that exist now; starts them, reads their links, reaps them, and posts what happened."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from ascendd.errors import EngineFault, IpcError
from ascendd.ipc.channel import socket_pair
from ascendd.ipc.messages import AttachPeer, Role
from ascendd.supervisor.event import ChildEnded, Event, KillDue, MessageReceived
from ascendd.supervisor.npu_environment import VISIBLE_DEVICES
from ascendd.supervisor.process import ChildProcess
from ascendd.supervisor.spec import ChildSpec
from ascendd.telemetry import log

# The link of a process that was reaped is read to its end; a descriptor left in a grandchild must not delay that.
_LAST_WORDS_S = 1.0
# A child that closed its control link has this long to end by itself.
_LINK_GRACE_S = 5.0


class ProcessTable:
    """At most one process per role. `post` takes the events; it is called from the event loop only."""

    def __init__(
        self,
        specs: Mapping[Role, ChildSpec],
        listeners: Mapping[str, socket.socket],
        log_reader: int | None,
        post: Callable[[Event], None],
    ) -> None:
        self._specs = dict(specs)
        self._listeners = listeners
        self._log_reader = log_reader
        self._post = post
        self._processes: dict[Role, ChildProcess] = {}
        self._readers: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[ChildProcess]:
        return iter(list(self._processes.values()))

    def get(self, role: Role, run: int | None = None) -> ChildProcess | None:
        """Return the process of `role`, if `run` is given only that very one."""
        process = self._processes.get(role)
        return process if process is not None and run in (None, process.run) else None

    def start(self, role: Role, run: int) -> ChildProcess:
        """Start the process of `role`. Raises EngineFault where the system refuses."""
        assert role not in self._processes
        spec = self._specs[role]
        listener = self._listeners.get(spec.listener) if spec.listener is not None else None
        try:
            process = ChildProcess(spec, run, listener, self._log_reader)
        except OSError as error:
            raise EngineFault(f"the {role.value} process cannot be started: {error}") from error
        self._processes[role] = process
        task = asyncio.get_running_loop().create_task(self._read(process))
        self._readers.add(task)
        task.add_done_callback(self._readers.discard)
        return process

    def show_devices(self, role: Role, devices: Sequence[int]) -> None:
        """Have the vendor's runtime of every later process of `role` see `devices` only, where it is told so at all."""
        spec = self._specs[role]
        if VISIBLE_DEVICES in spec.env:
            visible = ",".join(str(device) for device in sorted(devices))
            self._specs[role] = dataclasses.replace(spec, env={**spec.env, VISIBLE_DEVICES: visible})

    def send(self, role: Role, message: msgspec.Struct, fds: Sequence[int] = ()) -> bool:
        """Queue `message` to `role`; False where it has no process or its link is gone."""
        process = self._processes.get(role)
        return process is not None and process.send(message, fds)

    def attach(self, first: Role, second: Role, episode: int) -> None:
        """Give both a fresh data link to each other."""
        for role, peer, end in zip((first, second), (second, first), socket_pair(), strict=True):
            with end:
                self.send(role, AttachPeer(peer, episode), [end.fileno()])

    def reap(self) -> None:
        """Collect exit statuses; on SIGCHLD. An end is posted once everything that the process had sent was read."""
        for process in self:
            if process.status is not None:
                continue
            process.status = process.poll()
            if process.status is None:
                continue
            if process.link_closed:
                self._report_end(process)
            else:
                asyncio.get_running_loop().call_later(_LAST_WORDS_S, self._report_end, process)

    def remove(self, role: Role) -> None:
        """Forget a process that ended, together with whatever it had started in its group."""
        process = self._processes.pop(role)
        process.kill_group()
        process.close()

    def kill_all(self) -> None:
        """End everything at once; for the way out after a defect."""
        for process in self:
            self.remove(process.spec.role)

    async def _read(self, process: ChildProcess) -> None:
        role = process.spec.role
        try:
            while True:
                message = await process.channel.recv()
                self._post(MessageReceived(role, process.run, message))
        except IpcError as error:
            log.get_logger("supervisor").debug("supervisor.link_closed", child=role.value, error=error.message)
        process.link_closed = True
        if process.status is not None:
            self._report_end(process)
        else:
            asyncio.get_running_loop().call_later(_LINK_GRACE_S, self._post, KillDue(role, process.run))

    def _report_end(self, process: ChildProcess) -> None:
        if not process.end_reported:
            assert process.status is not None
            process.end_reported = True
            self._post(ChildEnded(process.spec.role, process.run, process.status))
