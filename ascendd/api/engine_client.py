"""
The API's end of the data link: sequences out, tokens in, fanned out to the requests they belong to.

The link comes and goes with the engine. Its end fails every request that has a token with EngineRestarting, because a
text that was half sent cannot be begun again. One without a token is held, once, and given to the next engine: a second
loss fails it, so that a request which ends engines does not end one after another.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ascendd.api.adapter_client import AdapterClient, Order
from ascendd.api.engine_probe import EngineProbe
from ascendd.errors import (
    AscenddError,
    DeadlineExceeded,
    EngineRestarting,
    PeerClosed,
    ProtocolMismatch,
    RequestAborted,
)
from ascendd.ipc.channel import AsyncChannel
from ascendd.ipc.messages import (
    AbortSequences,
    AdapterResult,
    AddSequence,
    DataMessage,
    EngineHello,
    Probe,
    ProbeDone,
    SamplingParams,
    SequenceFailed,
    StepOutput,
    TokenLogprobs,
)
from ascendd.telemetry.log import get_logger

# Tokens of one sequence that may wait for a client that does not read; then the sequence is given up.
MAX_QUEUED_TOKENS = 4096

_log = get_logger("api")


class TokenEvent(NamedTuple):
    """One token of the request's sequence number `choice`, or NO_TOKEN; `finish` is a FinishReason value."""

    choice: int
    token_id: int
    finish: int
    num_cached: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True)
class NewSequence:
    """A sequence to generate."""

    prompt_token_ids: list[int]
    params: SamplingParams
    adapter: str = ""


class OutputStream:
    """The tokens of one request's sequences in order of arrival, until each has ended or one has failed."""

    def __init__(self, client: EngineClient, seq_ids: Sequence[int], deadline: float) -> None:
        self._client = client
        self._choice = {seq_id: choice for choice, seq_id in enumerate(seq_ids)}
        self._seq_ids = list(seq_ids)
        self._open = set(seq_ids)
        self._prompt_logprobs: list[list[TokenLogprobs]] = [[] for _ in seq_ids]
        self._events: list[TokenEvent] = []
        self._wakeup = asyncio.Event()
        self._error: AscenddError | None = None
        self._orders: list[AddSequence] = []
        self._may_hold = True
        self._max_queued = MAX_QUEUED_TOKENS * max(1, len(seq_ids))
        # A timer, not asyncio.wait_for: before Python 3.12 that one loses a cancellation which comes with a token, and
        # the tokens of a client that left would be made to the end.
        self._timer = asyncio.get_running_loop().call_at(deadline, self._expire)

    async def next_events(self) -> list[TokenEvent]:
        """Wait for and return all tokens that are there, at least one. Raises the error that ended the request."""
        while not self._events:
            if self._error is not None:
                raise self._error
            self._wakeup.clear()
            await self._wakeup.wait()
        events, self._events = self._events, []
        return events

    @property
    def is_untouched(self) -> bool:
        """Whether nothing of an answer has come, so that another engine may begin it."""
        return self._may_hold and self._error is None

    @property
    def is_wanted(self) -> bool:
        """Whether any of its sequences is still open."""
        return bool(self._open)

    def give(self, orders: list[AddSequence]) -> None:
        """Keep what asks the engine for this request, until the first token."""
        self._orders = orders

    def take_orders(self) -> list[AddSequence]:
        """Return the orders that are still wanted, for the next engine; there is no third time."""
        self._may_hold = False
        return [order for order in self._orders if order.seq_id in self._open]

    def end(self, choice: int) -> None:
        """Abort sequence number `choice`; one that has ended is left alone."""
        seq_id = self._seq_ids[choice]
        if seq_id in self._open:
            self._open.discard(seq_id)
            self._client.abort([seq_id])

    def close(self) -> None:
        """Abort whatever has not ended."""
        self._timer.cancel()
        left, self._open = sorted(self._open), set()
        if left:
            self._client.abort(left)

    def prompt_logprobs(self, choice: int) -> list[TokenLogprobs]:
        """Return those of sequence number `choice` that have come, from its second prompt token on."""
        return self._prompt_logprobs[choice]

    def put_prompt_logprobs(self, seq_id: int, logprobs: Sequence[TokenLogprobs]) -> None:
        """Take the next ones of a prompt from the engine."""
        self._touch()
        self._prompt_logprobs[self._choice[seq_id]] += logprobs

    def put(
        self, seq_id: int, token_id: int, finish: int, num_cached: int, logprobs: TokenLogprobs | None = None
    ) -> bool:
        """Take a token from the engine; return whether its sequence goes on."""
        self._touch()
        if finish:
            self._open.discard(seq_id)
        self._events.append(TokenEvent(self._choice[seq_id], token_id, finish, num_cached, logprobs))
        self._wakeup.set()
        if len(self._events) > self._max_queued:
            self.fail(RequestAborted(f"the client left {len(self._events)} tokens unread"))
            self.close()
            return False
        return not finish

    def fail(self, error: AscenddError, *, ended_ids: Collection[int] = ()) -> None:
        """End the request with `error`, behind the tokens that came; the engine knows no `ended_ids` any more."""
        self._open.difference_update(ended_ids)
        if self._error is None:
            self._error = error
        self._wakeup.set()

    def _touch(self) -> None:
        self._may_hold = False
        self._orders = []

    def _expire(self) -> None:
        self.fail(
            DeadlineExceeded(
                "the request was not finished within admission.request_timeout_s, or X-Request-Timeout if shorter"
            )
        )


def _nothing() -> None:
    pass


class EngineClient:
    """Owns the data link and knows which request each sequence id belongs to."""

    def __init__(
        self,
        adapters: Sequence[str] = (),
        adapter_timeout_s: float = 600.0,
        restart_wait_s: float = 0.0,
        probe_timeout_s: float = 5.0,
    ) -> None:
        self.probe = EngineProbe(self._send_order, probe_timeout_s)
        self._restart_wait_s = restart_wait_s
        # Requests without a token whose engine is gone, in the order they came, each with the timer that ends its wait.
        self._held: dict[OutputStream, asyncio.TimerHandle] = {}
        self.on_attached: Callable[[], None] = _nothing
        self.adapters = AdapterClient(self._send_order, adapters, adapter_timeout_s)
        self._channel: AsyncChannel[DataMessage] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._streams: dict[int, OutputStream] = {}
        # Ids are never used again while this process lives, so a late token can only miss.
        self._next_id = itertools.count(1)
        self._attached = asyncio.Event()
        self.hello: EngineHello | None = None

    def set_limits(self, adapter_timeout_s: float, restart_wait_s: float) -> None:
        """Wait as long as these say from now on; a wait that runs keeps its end."""
        self.adapters.timeout_s = adapter_timeout_s
        self._restart_wait_s = restart_wait_s

    @property
    def num_open(self) -> int:
        """Sequences given to the engine that have not ended."""
        return len(self._streams)

    def attach(self, sock: socket.socket) -> None:
        """Use `sock` from now on; requests on an earlier link fail. Call from the event loop."""
        self.detach("the engine was replaced")
        channel: AsyncChannel[DataMessage] = AsyncChannel(sock, DataMessage)
        self._channel = channel
        self._reader = asyncio.get_running_loop().create_task(self._read(channel), name="engine-link")

    def detach(self, reason: str) -> None:
        """Close the link and fail every open request."""
        channel, self._channel = self._channel, None
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None
        if channel is not None:
            channel.close()
        self._lose(reason)

    async def wait_attached(self) -> EngineHello:
        """Return the engine's bounds once it has said Hello."""
        while self.hello is None:
            await self._attached.wait()
        return self.hello

    def bounds(self) -> EngineHello:
        """Return the engine's bounds. Raises EngineRestarting while none is connected."""
        if self.hello is None:
            raise EngineRestarting("the engine is not connected")
        return self.hello

    def submit(
        self, sequences: Sequence[NewSequence], *, request_id: str, deadline: float, priority: int
    ) -> OutputStream:
        """
        Give `sequences` to the engine and return their common stream.

        At `deadline`, loop time and thus CLOCK_MONOTONIC, the stream fails with DeadlineExceeded.
        Raises EngineRestarting when the engine is gone.
        """
        channel = self._channel
        if channel is None or self.hello is None:
            raise EngineRestarting("the engine is not connected")
        seq_ids = [next(self._next_id) for _ in sequences]
        stream = OutputStream(self, seq_ids, deadline)
        try:
            orders = [
                AddSequence(
                    seq_id, new.prompt_token_ids, new.params, request_id, deadline, priority, adapter=new.adapter
                )
                for seq_id, new in zip(seq_ids, sequences, strict=True)
            ]
            stream.give(orders)
            for order in orders:
                self._streams[order.seq_id] = stream
                channel.send(order)
        except PeerClosed as error:
            for seq_id in seq_ids:
                self._streams.pop(seq_id, None)
            stream.close()
            raise EngineRestarting("the engine went away") from error
        return stream

    def abort(self, seq_ids: Sequence[int]) -> None:
        """Have the engine forget `seq_ids` and drop what may still come for them."""
        for seq_id in seq_ids:
            self._streams.pop(seq_id, None)
        for stream in [held for held in self._held if not held.is_wanted]:
            self._held.pop(stream).cancel()
        if self._channel is not None:
            with contextlib.suppress(PeerClosed):
                self._channel.send(AbortSequences(list(seq_ids)))

    def resume(self) -> None:
        """Give the engine, which serves now, what was held for it."""
        held, self._held = self._held, {}
        for stream, timer in held.items():
            timer.cancel()
            orders = stream.take_orders()
            try:
                for order in orders:
                    self._streams[order.seq_id] = stream
                    self._send_order(order)
            except EngineRestarting as error:
                for order in orders:
                    self._streams.pop(order.seq_id, None)
                stream.fail(error, ended_ids=[order.seq_id for order in orders])
        if held:
            _log.info("api.requests_resumed", requests=len(held))

    def give_up(self, reason: str) -> None:
        """End what is held: no engine will come."""
        for stream in list(self._held):
            self._fail_held(stream, reason)

    def fail_all(self, error: AscenddError) -> None:
        """End every open request with `error` and abort its sequences."""
        for stream in {*self._streams.values(), *self._held}:
            stream.fail(error)
            stream.close()

    def _fail_held(self, stream: OutputStream, reason: str) -> None:
        timer = self._held.pop(stream, None)
        if timer is not None:
            timer.cancel()
            stream.fail(EngineRestarting(reason), ended_ids=[order.seq_id for order in stream.take_orders()])

    def _send_order(self, order: Order | AddSequence | Probe) -> None:
        if self._channel is None:
            raise EngineRestarting("the engine is not connected")
        try:
            self._channel.send(order)
        except PeerClosed as error:
            raise EngineRestarting("the engine went away") from error

    async def _read(self, channel: AsyncChannel[DataMessage]) -> None:
        try:
            while True:
                self._dispatch(await channel.recv())
        except PeerClosed:
            reason = "the engine ended"
        except Exception as error:  # a message that cannot be understood ends the link like a death does
            _log.error("api.engine_link_broken", error=str(error), exc_info=not isinstance(error, AscenddError))
            reason = "the link to the engine broke"
        if self._channel is channel:
            self._channel = None
            channel.close()
            # At the end of a drain nobody is hurt, and the supervisor tells why an engine ended.
            log = _log.warning if self._streams else _log.info
            log("api.engine_gone", reason=reason, open_sequences=len(self._streams))
            self._lose(reason)

    def _dispatch(self, message: DataMessage) -> None:
        if isinstance(message, StepOutput):
            self._take_step(message)
        elif isinstance(message, SequenceFailed):
            failed = self._streams.pop(message.seq_id, None)
            if failed is not None:
                failed.fail(message.fault.to_error(), ended_ids=(message.seq_id,))
        elif isinstance(message, EngineHello):
            self.adapters.attached(message.adapters)
            self.hello = message
            self._attached.set()
            self.on_attached()
            _log.info("api.engine_attached", max_model_len=message.max_model_len, max_num_seqs=message.max_num_seqs)
        elif isinstance(message, AdapterResult):
            self.adapters.take(message)
        elif isinstance(message, ProbeDone):
            self.probe.take(message)
        else:
            raise ProtocolMismatch(f"the engine sent {type(message).__name__}")

    def _take_step(self, message: StepOutput) -> None:
        seq_ids = message.seq_ids
        logprobs: list[TokenLogprobs | None] = message.logprobs or [None] * len(seq_ids)
        columns = list(zip(seq_ids, message.token_ids, message.finish, message.num_cached, logprobs, strict=True))
        for seq_id, prompt_scores in message.prompt_logprobs.items():
            stream = self._streams.get(seq_id)
            if stream is not None:
                stream.put_prompt_logprobs(seq_id, prompt_scores)
        for seq_id, token_id, finish, num_cached, scores in columns:
            stream = self._streams.get(seq_id)
            # None: aborted in the very step that made this token.
            if stream is not None and not stream.put(seq_id, token_id, finish, num_cached, scores):
                self._streams.pop(seq_id, None)

    def _lose(self, reason: str) -> None:
        self.hello = None
        self._attached.clear()
        self.adapters.lost(reason)
        self.probe.lost(reason)
        streams, self._streams = self._streams, {}
        loop = asyncio.get_running_loop()
        num_held = len(self._held)
        for stream in dict.fromkeys(streams.values()):
            if self._restart_wait_s and stream.is_untouched:
                text = f"the engine was not back within admission.restart_wait_s ({self._restart_wait_s:g} s)"
                self._held[stream] = loop.call_later(self._restart_wait_s, self._fail_held, stream, text)
                continue
            error = EngineRestarting(f"{reason} before this request was finished; it is being restarted; retry")
            stream.fail(error, ended_ids=streams.keys())
        if len(self._held) > num_held:
            _log.info("api.requests_held", requests=len(self._held), wait_s=self._restart_wait_s)
