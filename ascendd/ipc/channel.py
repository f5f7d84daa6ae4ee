"""
One end of a socket pair: AsyncChannel inside an event loop, BlockingChannel outside of one.

Descriptors may travel with a message (SCM_RIGHTS). They arrive in order; the receiver of a message that carries one
takes it with `take_fd()`. The end of the stream raises PeerClosed: that is how every process learns of a death.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from ascendd.errors import PeerClosed
from ascendd.ipc.frames import FrameDecoder, encode_frame

_READ_BYTES = 256 * 1024
_MAX_FDS = 8
# A peer that reads nothing must not make this process grow without end.
MAX_PENDING_BYTES = 256 * 1024 * 1024

M = TypeVar("M")


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected stream sockets with room for a whole step of output each way."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1024 * 1024)
    return ours, theirs


def _wait(sock: socket.socket, event: int, timeout_s: float | None) -> bool:
    """Wait until `event` or an end is there; poll, because select refuses descriptors beyond 1023."""
    poller = select.poll()
    poller.register(sock, event)
    return bool(poller.poll(None if timeout_s is None else timeout_s * 1000))


class _Receiver(Generic[M]):
    """Bytes and descriptors from a socket, as messages; shared by both channels."""

    def __init__(self, sock: socket.socket, union: Any) -> None:
        self._sock = sock
        self._decoder: FrameDecoder[M] = FrameDecoder(union)
        self.messages: collections.deque[M] = collections.deque()
        self.fds: collections.deque[int] = collections.deque()

    def pull(self) -> bool:
        """Read once; return False at the end of the stream. Raises BlockingIOError when nothing is there."""
        try:
            data, fds, _flags, _addr = socket.recv_fds(self._sock, _READ_BYTES, _MAX_FDS)
        except (ConnectionResetError, BrokenPipeError):
            return False
        for fd in fds:
            os.set_inheritable(fd, False)
            self.fds.append(fd)
        if not data:
            return False
        self.messages.extend(self._decoder.feed(data))
        return True

    def take_fd(self) -> int:
        if not self.fds:
            raise PeerClosed("a message announced a descriptor and none came with it")
        return self.fds.popleft()

    def close(self) -> None:
        while self.fds:
            os.close(self.fds.popleft())


class AsyncChannel(Generic[M]):
    """A channel for one asyncio loop; `send` never blocks, `recv` waits."""

    def __init__(self, sock: socket.socket, union: Any, receiver: _Receiver[M] | None = None) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._receiver: _Receiver[M] = _Receiver(sock, union) if receiver is None else receiver
        self._outgoing: collections.deque[tuple[memoryview, Sequence[int]]] = collections.deque()
        self._pending_bytes = 0
        self._writing = False
        self._closed = False
        self._eof: Exception | None = None
        self._wakeup = asyncio.Event()
        self._loop.add_reader(sock.fileno(), self._on_readable)

    @property
    def closed(self) -> bool:
        """Whether the peer is gone or `close` was called."""
        return self._closed or self._eof is not None

    @property
    def num_pending_bytes(self) -> int:
        """Bytes given to `send` and not yet taken by the kernel."""
        return self._pending_bytes

    def send(self, message: msgspec.Struct, fds: Sequence[int] = ()) -> None:
        """
        Queue `message`; `fds` are duplicated to the peer, so the caller may close its own at once.

        Raises PeerClosed when the peer is gone, FrameTooLarge for a message beyond the limit.
        """
        if self.closed:
            raise PeerClosed(f"cannot send {type(message).__name__}: the peer is gone")
        frame = encode_frame(message)
        if self._pending_bytes + len(frame) > MAX_PENDING_BYTES:
            self._fail(PeerClosed(f"the peer left {self._pending_bytes} bytes unread"))
            raise PeerClosed(f"cannot send {type(message).__name__}: the peer left {self._pending_bytes} bytes unread")
        own_fds = [os.dup(fd) for fd in fds]
        self._outgoing.append((memoryview(frame), own_fds))
        self._pending_bytes += len(frame)
        if not self._writing:
            self._on_writable()

    async def recv(self) -> M:
        """Return the next message; raises PeerClosed once all that arrived before the end was returned."""
        while not self._receiver.messages:
            if self._eof is not None:
                raise self._eof
            if self._closed:
                raise PeerClosed("the channel was closed")
            self._wakeup.clear()
            await self._wakeup.wait()
        return self._receiver.messages.popleft()

    def take_fd(self) -> int:
        """Return the descriptor that came with the message just received."""
        return self._receiver.take_fd()

    def close(self) -> None:
        """Close this end; what was not sent is dropped."""
        if self._closed:
            return
        self._closed = True
        self._detach()
        self._drop_outgoing()
        self._receiver.close()
        self._sock.close()
        self._wakeup.set()

    def _detach(self) -> None:
        with contextlib.suppress(ValueError, OSError):
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())

    def _drop_outgoing(self) -> None:
        while self._outgoing:
            for fd in self._outgoing.popleft()[1]:
                os.close(fd)
        self._pending_bytes = 0

    def _fail(self, error: Exception) -> None:
        if self._eof is None:
            self._eof = error
            self._detach()
            self._drop_outgoing()
            self._wakeup.set()

    def _on_readable(self) -> bool:
        """Read once; return whether something came."""
        try:
            alive = self._receiver.pull()
        except BlockingIOError:
            return False
        except Exception as error:  # a corrupt frame ends the link like a death does
            self._fail(error)
            return False
        if not alive:
            self._fail(PeerClosed("the peer closed the channel"))
            return False
        self._wakeup.set()
        return True

    def _on_writable(self) -> None:
        while self._outgoing:
            view, fds = self._outgoing[0]
            try:
                sent = socket.send_fds(self._sock, [view], list(fds)) if fds else self._sock.send(view)
            except (BlockingIOError, InterruptedError):
                if not self._writing:
                    self._loop.add_writer(self._sock.fileno(), self._on_writable)
                    self._writing = True
                return
            except OSError as error:
                # The last words of a peer that died, such as why, are still on this side.
                while self._eof is None and not self._closed and self._on_readable():
                    pass
                self._fail(PeerClosed(f"the peer closed the channel: {error.strerror}"))
                return
            for fd in fds:
                os.close(fd)
            self._pending_bytes -= sent
            if sent == len(view):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = (view[sent:], ())
        if self._writing:
            self._loop.remove_writer(self._sock.fileno())
            self._writing = False


class BlockingChannel(Generic[M]):
    """A channel for a plain thread. `send` is safe from several threads; only one may receive."""

    def __init__(self, sock: socket.socket, union: Any) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._receiver: _Receiver[M] = _Receiver(sock, union)
        self._send_lock = threading.Lock()

    def fileno(self) -> int:
        """Descriptor to wait on; readable also at the end of the stream."""
        return self._sock.fileno()

    def send(self, message: msgspec.Struct, timeout_s: float = 30.0) -> None:
        """Write `message` whole. Raises PeerClosed when the peer is gone or takes nothing for `timeout_s`."""
        view = memoryview(encode_frame(message))
        deadline = time.monotonic() + timeout_s
        with self._send_lock:
            while view:
                try:
                    view = view[self._sock.send(view) :]
                except (BlockingIOError, InterruptedError):
                    left = deadline - time.monotonic()
                    if left <= 0 or not _wait(self._sock, select.POLLOUT, left):
                        raise PeerClosed(f"the peer read nothing for {timeout_s:g} s") from None
                except OSError as error:
                    raise PeerClosed(f"the peer closed the channel: {error.strerror}") from error

    def recv(self, timeout_s: float | None = None) -> M | None:
        """Return the next message, or None after `timeout_s` without one. Raises PeerClosed at the end."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._receiver.messages:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not _wait(self._sock, select.POLLIN, left):
                return None
            self._pull()
        return self._receiver.messages.popleft()

    def drain(self) -> list[M]:
        """Return all messages that are here now, without waiting. Raises PeerClosed only once none is left."""
        while _wait(self._sock, select.POLLIN, 0.0):
            try:
                self._pull()
            except PeerClosed:
                if not self._receiver.messages:
                    raise
                break
        messages = list(self._receiver.messages)
        self._receiver.messages.clear()
        return messages

    def take_fd(self) -> int:
        """Return the descriptor that came with the message just received."""
        return self._receiver.take_fd()

    def into_async(self) -> AsyncChannel[M]:
        """
        Return an AsyncChannel of the running loop with this socket and all that has arrived on it.

        From then on this object may only send, and only once the other has nothing left to send.
        """
        return AsyncChannel(self._sock, None, self._receiver)

    def close(self) -> None:
        """Close this end."""
        self._receiver.close()
        self._sock.close()

    def _pull(self) -> None:
        try:
            alive = self._receiver.pull()
        except BlockingIOError:
            return
        if not alive:
            raise PeerClosed("the peer closed the channel")
