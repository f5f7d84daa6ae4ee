"""Channels over a real socket pair: descriptors travel, a death is an error, slow readers and many senders lose nothing."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Coroutine

import pytest

from ascendd.errors import FrameTooLarge, PeerClosed, ProtocolMismatch
from ascendd.ipc import channel as channel_module
from ascendd.ipc.channel import AsyncChannel, BlockingChannel, socket_pair
from ascendd.ipc.messages import AbortSequences, AttachPeer, ControlMessage, DataMessage, Progress, Role

Body = Callable[["AsyncChannel[object]", socket.socket], Coroutine[None, None, None]]


def run_async(body: Body, union: object = ControlMessage) -> None:
    """Run `body` with an AsyncChannel and the bare socket at its other end, and close both."""

    async def main() -> None:
        ours, theirs = socket_pair()
        channel: AsyncChannel[object] = AsyncChannel(ours, union)
        try:
            await asyncio.wait_for(body(channel, theirs), 20)
        finally:
            channel.close()
            theirs.close()

    asyncio.run(main())


def blocking_pair(union: object = ControlMessage) -> tuple[BlockingChannel[object], BlockingChannel[object]]:
    """Return two connected channels."""
    left, right = socket_pair()
    return BlockingChannel(left, union), BlockingChannel(right, union)


# --- async -----------------------------------------------------------------------------------------------------------


def test_descriptor_travels_with_its_message() -> None:
    """The receiver of AttachPeer takes a descriptor of the same open file, which no child of it inherits."""

    async def body(channel: AsyncChannel[object], theirs: socket.socket) -> None:
        peer: AsyncChannel[object] = AsyncChannel(theirs, ControlMessage)
        read_end, write_end = os.pipe()
        channel.send(AttachPeer(Role.API, 1), fds=[write_end])
        os.close(write_end)

        message = await peer.recv()
        taken = peer.take_fd()
        os.write(taken, b"hello")

        assert message == AttachPeer(Role.API, 1)
        assert os.read(read_end, 5) == b"hello"
        assert not os.get_inheritable(taken)
        os.close(taken)
        os.close(read_end)
        peer.close()

    run_async(body)


def test_descriptors_keep_the_order_of_their_messages() -> None:
    """Two descriptors sent with two messages are taken in that order, whatever is sent between."""

    async def body(channel: AsyncChannel[object], theirs: socket.socket) -> None:
        peer: AsyncChannel[object] = AsyncChannel(theirs, ControlMessage)
        pipes = [os.pipe(), os.pipe()]
        for episode, (_, write_end) in enumerate(pipes):
            channel.send(AttachPeer(Role.ENGINE, episode), fds=[write_end])
            channel.send(Progress("between"))
            os.close(write_end)

        received = [await peer.recv() for _ in range(4)]
        taken = [peer.take_fd(), peer.take_fd()]
        for number, fd in enumerate(taken):
            os.write(fd, b"%d" % number)
            os.close(fd)

        assert received[::2] == [AttachPeer(Role.ENGINE, 0), AttachPeer(Role.ENGINE, 1)]
        assert [os.read(read_end, 1) for read_end, _ in pipes] == [b"0", b"1"]
        for read_end, _ in pipes:
            os.close(read_end)
        peer.close()

    run_async(body)


def test_descriptor_that_did_not_come_is_an_error() -> None:
    """Taking a descriptor that no message brought raises instead of returning a stranger's."""

    async def body(channel: AsyncChannel[object], theirs: socket.socket) -> None:
        with pytest.raises(PeerClosed, match="none came"):
            channel.take_fd()

    run_async(body)


def test_descriptors_nobody_took_are_closed_with_the_channel() -> None:
    """A closed channel leaks no descriptor: the pipe's reader sees the end."""

    async def body(channel: AsyncChannel[object], theirs: socket.socket) -> None:
        peer: AsyncChannel[object] = AsyncChannel(theirs, ControlMessage)
        read_end, write_end = os.pipe()
        channel.send(AttachPeer(Role.API, 1), fds=[write_end])
        os.close(write_end)
        await peer.recv()
        peer.close()

        assert os.read(read_end, 1) == b""
        os.close(read_end)

    run_async(body)


def test_messages_before_the_end_are_returned_first() -> None:
    """What a peer wrote before it died is still received; then comes PeerClosed, again and again."""

    async def body(channel: AsyncChannel[object], theirs: socket.socket) -> None:
        sender: BlockingChannel[object] = BlockingChannel(theirs, ControlMessage)
        for number in range(3):
            sender.send(Progress(str(number)))
        sender.close()

        received = [await channel.recv() for _ in range(3)]

        assert received == [Progress("0"), Progress("1"), Progress("2")]
        for _ in range(2):
            with pytest.raises(PeerClosed):
                await channel.recv()
        assert channel.closed
        with pytest.raises(PeerClosed, match="Progress"):
            channel.send(Progress("late"))

    run_async(body)


def test_last_words_outlive_a_failed_send() -> None:
    """A send that meets a dead peer does not hide what the peer had said before it died."""

    async def body(channel: AsyncChannel[object], theirs: socket.socket) -> None:
        peer: BlockingChannel[object] = BlockingChannel(theirs, ControlMessage)
        peer.send(Progress("dying"))
        peer.close()

        channel.send(Progress("are you there?"))  # before the loop had a chance to read

        assert await channel.recv() == Progress("dying")
        with pytest.raises(PeerClosed):
            await channel.recv()

    run_async(body)


def test_close_wakes_a_waiting_receiver() -> None:
    """A task that waits in recv learns of a close at this end."""

    async def body(channel: AsyncChannel[object], theirs: socket.socket) -> None:
        waiting = asyncio.ensure_future(channel.recv())
        await asyncio.sleep(0)
        channel.close()

        with pytest.raises(PeerClosed):
            await waiting

    run_async(body)


def test_large_messages_reach_a_slow_reader_whole() -> None:
    """Megabytes queue without blocking the sender, and arrive in order once the peer reads."""
    big = [AbortSequences(list(range(start, start + 300_000))) for start in range(3)]

    async def body(channel: AsyncChannel[object], theirs: socket.socket) -> None:
        for message in big:
            channel.send(message)
        queued = channel.num_pending_bytes
        reader: BlockingChannel[object] = BlockingChannel(theirs, DataMessage)
        received = [await asyncio.to_thread(reader.recv, 10.0) for _ in big]

        assert queued > 1024 * 1024
        assert received == big
        assert channel.num_pending_bytes == 0

    run_async(body, DataMessage)


def test_peer_that_reads_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit of unread bytes the link counts as dead, so this process does not grow without end."""
    monkeypatch.setattr(channel_module, "MAX_PENDING_BYTES", 4 * 1024 * 1024)

    async def body(channel: AsyncChannel[object], theirs: socket.socket) -> None:
        message = AbortSequences(list(range(1_000_000, 1_200_000)))

        def send_without_end() -> None:
            for _ in range(20):
                channel.send(message)

        with pytest.raises(PeerClosed, match="unread"):
            send_without_end()

        assert channel.closed
        assert channel.num_pending_bytes == 0

    run_async(body, DataMessage)


def test_corrupt_frame_ends_the_link() -> None:
    """A frame that is no message is as final as a death, and says what it was."""

    async def body(channel: AsyncChannel[object], theirs: socket.socket) -> None:
        theirs.sendall(b"\x00\x00\x00\x01\xc1")

        with pytest.raises(ProtocolMismatch):
            await channel.recv()
        assert channel.closed

    run_async(body)


# --- blocking --------------------------------------------------------------------------------------------------------


def test_concurrent_senders_do_not_mix_frames() -> None:
    """Eight threads that send at once through one channel lose nothing and keep each its own order."""
    left, right = blocking_pair()
    per_thread, senders = 50, 8

    def send(name: str) -> None:
        for number in range(per_thread):
            left.send(Progress(f"{name}:{number}:" + "x" * 20_000))

    threads = [threading.Thread(target=send, args=(f"t{index}",)) for index in range(senders)]
    for thread in threads:
        thread.start()
    received = [right.recv(10.0) for _ in range(per_thread * senders)]
    for thread in threads:
        thread.join()

    by_thread: dict[str, list[int]] = {}
    for message in received:
        assert isinstance(message, Progress)
        name, number, _ = message.phase.split(":")
        by_thread.setdefault(name, []).append(int(number))
    assert by_thread == {f"t{index}": list(range(per_thread)) for index in range(senders)}
    left.close()
    right.close()


def test_receive_times_out_with_none() -> None:
    """Silence is None, not an error."""
    left, right = blocking_pair()

    assert right.recv(0.01) is None
    left.close()
    right.close()


def test_blocking_receiver_learns_of_a_death_after_the_last_message() -> None:
    """Recv returns what is there, then raises; a sender to a dead peer raises too."""
    left, right = blocking_pair()
    left.send(Progress("last"))
    left.close()

    assert right.recv(5.0) == Progress("last")
    with pytest.raises(PeerClosed):
        right.recv(5.0)
    with pytest.raises(PeerClosed):
        right.send(Progress("to nobody"))
    right.close()


def test_drain_returns_all_that_is_here_and_raises_only_when_nothing_is_left() -> None:
    """Drain takes every message without waiting; the end shows at the next call."""
    left, right = blocking_pair()
    nothing = right.drain()
    for number in range(4):
        left.send(Progress(str(number)))
    left.close()

    drained = right.drain()

    assert nothing == []
    assert drained == [Progress(str(number)) for number in range(4)]
    with pytest.raises(PeerClosed):
        right.drain()
    right.close()


def test_sender_gives_up_on_a_peer_that_reads_nothing() -> None:
    """A blocking send to a full pipe ends after its time-out."""
    left, right = blocking_pair(DataMessage)
    message = AbortSequences(list(range(1_000_000, 1_900_000)))

    def send_without_end() -> None:
        for _ in range(20):
            left.send(message, timeout_s=0.05)

    with pytest.raises(PeerClosed, match="the peer read nothing"):
        send_without_end()
    left.close()
    right.close()


def test_message_beyond_the_limit_leaves_the_link_usable() -> None:
    """A message too large for a frame is refused before a byte is written."""
    left, right = blocking_pair()

    with pytest.raises(FrameTooLarge):
        left.send(Progress("x" * (64 * 1024 * 1024 + 1)))
    left.send(Progress("fine"))

    assert right.recv(5.0) == Progress("fine")
    left.close()
    right.close()


def test_descriptor_numbers_beyond_1023_work() -> None:
    """A process with many open files can still wait on its link."""
    import fcntl
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2048:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, hard) if hard > 0 else 2048, hard))
    left, right = socket_pair()
    high = fcntl.fcntl(right.fileno(), fcntl.F_DUPFD_CLOEXEC, 1500)
    right.close()
    sender: BlockingChannel[object] = BlockingChannel(left, ControlMessage)
    receiver: BlockingChannel[object] = BlockingChannel(socket.socket(fileno=high), ControlMessage)
    sender.send(Progress("high"))

    assert receiver.recv(5.0) == Progress("high")
    sender.close()
    receiver.close()
