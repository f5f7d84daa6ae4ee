"""Sequences of one request, fed by an engine that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ascendd.api.body import convert
from ascendd.api.engine_client import MAX_QUEUED_TOKENS, EngineClient, NewSequence
from ascendd.api.generation import Delta, Generation
from ascendd.api.parameters import read_spec
from ascendd.api.prompts import Prompt
from ascendd.api.protocol import CompletionRequest
from ascendd.api.tokenizer import ModelTokenizer
from ascendd.errors import DeadlineExceeded, DeviceOutOfMemory, EngineRestarting, PeerClosed, RequestAborted
from ascendd.ipc.channel import AsyncChannel, socket_pair
from ascendd.ipc.messages import (
    AbortSequences,
    AddSequence,
    DataMessage,
    EngineHello,
    Fault,
    FinishReason,
    SamplingParams,
    SequenceFailed,
    StepOutput,
)
from ascendd.telemetry.metrics import API_METRICS, MetricStore

HELLO = EngineHello("m", 128, 290, (1,), 64, 16, 8)
FAR = 60.0

Body = Callable[[EngineClient, AsyncChannel[DataMessage]], Coroutine[Any, Any, None]]


def with_engine(body: Body) -> None:
    """Run `body` with a client and the engine's end of its link, after the Hello."""

    async def run() -> None:
        ours, theirs = socket_pair()
        client = EngineClient()
        client.attach(ours)
        engine: AsyncChannel[DataMessage] = AsyncChannel(theirs, DataMessage)
        engine.send(HELLO)
        await asyncio.wait_for(client.wait_attached(), 10)
        try:
            await asyncio.wait_for(body(client, engine), 30)
        finally:
            client.detach("the test is over")
            engine.close()

    asyncio.run(run())


def deadline_in(seconds: float) -> float:
    """Loop time `seconds` from now."""
    return asyncio.get_running_loop().time() + seconds


def generation_of(tokenizer: ModelTokenizer, metrics: MetricStore | None = None, **fields: Any) -> Generation:
    """A generation for one prompt of three tokens."""
    body = convert(fields, CompletionRequest)
    spec = read_spec(body, HELLO, tokenizer, max_tokens=body.max_tokens, default_max_tokens=16)
    return Generation(
        [Prompt([5, 6, 7], "")],
        spec,
        [16],
        tokenizer,
        metrics=metrics or MetricStore(API_METRICS),
        received_at=asyncio.get_running_loop().time(),
    )


async def added(engine: AsyncChannel[DataMessage]) -> int:
    """The id of the next sequence that reaches the engine."""
    message = await engine.recv()
    assert isinstance(message, AddSequence)
    return message.seq_id


def step(*tokens: tuple[int, int, int]) -> StepOutput:
    """One step: (seq_id, token_id, finish) each."""
    ids, token_ids, finish = zip(*tokens, strict=True)
    return StepOutput(list(ids), list(token_ids), list(finish), [0] * len(tokens))


def test_tokens_that_wait_become_one_delta(byte_level_tokenizer: ModelTokenizer) -> None:
    """Tokens queued for one stream are one piece of text."""
    ids = byte_level_tokenizer.encode("hello you", add_special_tokens=False)

    async def body(client: EngineClient, engine: AsyncChannel[DataMessage]) -> None:
        with generation_of(byte_level_tokenizer) as generation:
            generation.submit(client, "r", deadline_in(FAR))
            seq_id = await added(engine)
            for token_id in ids[:-1]:
                engine.send(step((seq_id, token_id, 0)))
            engine.send(step((seq_id, ids[-1], FinishReason.LENGTH)))
            while client.num_open:
                await asyncio.sleep(0.001)
            deltas = [delta async for delta in generation.deltas()]

        assert len(ids) > 1
        assert deltas == [[Delta(0, "hello you", "length")]]

    with_engine(body)


def test_leaving_aborts_what_runs(byte_level_tokenizer: ModelTokenizer) -> None:
    """B56: leaving the block, as a cancelled handler does, aborts every open sequence and no other."""

    async def body(client: EngineClient, engine: AsyncChannel[DataMessage]) -> None:
        with generation_of(byte_level_tokenizer, n=2) as generation:
            generation.submit(client, "r", deadline_in(FAR))
            first, second = await added(engine), await added(engine)
            engine.send(step((first, 75, FinishReason.LENGTH)))
            async for _ in generation.deltas():
                break
        message = await engine.recv()

        assert message == AbortSequences([second])
        assert client.num_open == 0

    with_engine(body)


def test_stop_string_of_one_sample_frees_its_place(byte_level_tokenizer: ModelTokenizer) -> None:
    """A sample that a stop string ended is aborted at the engine while the other goes on."""
    (token_x,), (token_y,) = (byte_level_tokenizer.encode(text, add_special_tokens=False) for text in "xy")

    async def body(client: EngineClient, engine: AsyncChannel[DataMessage]) -> None:
        with generation_of(byte_level_tokenizer, n=2, stop="x") as generation:
            generation.submit(client, "r", deadline_in(FAR))
            first, second = await added(engine), await added(engine)
            engine.send(step((first, token_x, 0), (second, token_y, 0)))
            deltas = generation.deltas()
            seen = await anext(deltas)

            assert seen == [Delta(0, "", "stop"), Delta(1, "y", None)]
            assert await engine.recv() == AbortSequences([first])
            assert client.num_open == 1
            await deltas.aclose()

    with_engine(body)


def test_late_events_are_ignored(byte_level_tokenizer: ModelTokenizer) -> None:
    """B57: tokens and failures of aborted, finished and unknown sequences change nothing."""

    async def body(client: EngineClient, engine: AsyncChannel[DataMessage]) -> None:
        with generation_of(byte_level_tokenizer) as generation:
            generation.submit(client, "r", deadline_in(FAR))
            gone = await added(engine)
        with generation_of(byte_level_tokenizer) as generation:
            generation.submit(client, "r", deadline_in(FAR))
            assert isinstance(await engine.recv(), AbortSequences)
            seq_id = await added(engine)
            engine.send(SequenceFailed(gone, Fault("ASD-X01", "late")))
            engine.send(step((gone, 75, FinishReason.LENGTH), (seq_id, 75, 0), (999, 75, 0)))
            engine.send(step((seq_id, 75, FinishReason.LENGTH)))
            engine.send(step((seq_id, 75, FinishReason.LENGTH)))
            async for _ in generation.deltas():
                pass

        assert generation.num_completion_tokens == 2
        assert seq_id != gone

    with_engine(body)


def test_death_of_the_engine_fails_every_request(byte_level_tokenizer: ModelTokenizer) -> None:
    """The end of the link ends each open request with EngineRestarting, behind the tokens that came before."""

    async def body(client: EngineClient, engine: AsyncChannel[DataMessage]) -> None:
        generation = generation_of(byte_level_tokenizer)
        generation.submit(client, "r", deadline_in(FAR))
        engine.send(step((await added(engine), byte_level_tokenizer.encode("h", add_special_tokens=False)[0], 0)))
        while not generation._stream._events:  # type: ignore[union-attr]
            await asyncio.sleep(0.001)
        engine.close()
        texts: list[str] = []

        async def collect() -> None:
            async for deltas in generation.deltas():
                texts.extend(delta.text for delta in deltas)

        with pytest.raises(EngineRestarting):
            await collect()

        assert texts == ["h"]
        assert client.hello is None
        with pytest.raises(EngineRestarting):
            client.submit([NewSequence([1], SamplingParams(1))], request_id="", deadline=deadline_in(FAR), priority=0)

    with_engine(body)


def test_failure_of_one_sequence_is_the_request_s(byte_level_tokenizer: ModelTokenizer) -> None:
    """A SequenceFailed ends its request with the fault, and the other samples are aborted."""

    async def body(client: EngineClient, engine: AsyncChannel[DataMessage]) -> None:
        with generation_of(byte_level_tokenizer, n=2) as generation:
            generation.submit(client, "r", deadline_in(FAR))
            first, second = await added(engine), await added(engine)
            engine.send(SequenceFailed(first, Fault.from_error(DeviceOutOfMemory("no room"))))
            with pytest.raises(DeviceOutOfMemory, match="no room"):
                async for _ in generation.deltas():
                    pass

        assert await engine.recv() == AbortSequences([second])

    with_engine(body)


def test_cancellation_that_comes_with_a_token_is_kept() -> None:
    """B56: a handler cancelled in the very moment a token arrives ends; the token must not swallow the cancellation."""

    async def body(client: EngineClient, engine: AsyncChannel[DataMessage]) -> None:
        stream = client.submit(
            [NewSequence([1], SamplingParams(1))], request_id="", deadline=deadline_in(FAR), priority=0
        )
        seq_id = await added(engine)

        async def consume() -> None:
            while True:
                await stream.next_events()

        task = asyncio.create_task(consume())
        await asyncio.sleep(0)
        stream.put(seq_id, 75, 0, 0)
        task.cancel()
        await asyncio.wait({task}, timeout=5)

        assert task.cancelled()
        stream.close()

    with_engine(body)


def test_deadline_ends_the_wait(byte_level_tokenizer: ModelTokenizer) -> None:
    """A request whose deadline passes is DeadlineExceeded."""

    async def body(client: EngineClient, engine: AsyncChannel[DataMessage]) -> None:
        with generation_of(byte_level_tokenizer) as generation:
            generation.submit(client, "r", deadline_in(0.02))
            with pytest.raises(DeadlineExceeded):
                async for _ in generation.deltas():
                    pass

        assert isinstance(await engine.recv(), AddSequence)
        assert isinstance(await engine.recv(), AbortSequences)

    with_engine(body)


def test_tokens_nobody_takes_are_bounded() -> None:
    """B93: a sequence whose tokens pile up is aborted at the engine and its request fails."""

    async def body(client: EngineClient, engine: AsyncChannel[DataMessage]) -> None:
        stream = client.submit(
            [NewSequence([1], SamplingParams(1))], request_id="", deadline=deadline_in(FAR), priority=0
        )
        seq_id = await added(engine)
        for _ in range(MAX_QUEUED_TOKENS + 10):
            engine.send(step((seq_id, 75, 0)))
        aborted = await engine.recv()
        num_kept = len(await stream.next_events())

        assert aborted == AbortSequences([seq_id])
        assert num_kept == MAX_QUEUED_TOKENS + 1
        with pytest.raises(RequestAborted):
            await stream.next_events()

    with_engine(body)


def test_new_link_replaces_the_old_one() -> None:
    """Attaching again closes the old link, fails what ran on it, and uses the new one's bounds."""

    async def body(client: EngineClient, engine: AsyncChannel[DataMessage]) -> None:
        stream = client.submit(
            [NewSequence([1], SamplingParams(1))], request_id="", deadline=deadline_in(FAR), priority=0
        )
        ours, theirs = socket_pair()
        client.attach(ours)
        newer: AsyncChannel[DataMessage] = AsyncChannel(theirs, DataMessage)
        newer.send(EngineHello("m", 64, 290, (1,), 64, 16, 8))

        assert (await client.wait_attached()).max_model_len == 64
        with pytest.raises(EngineRestarting):
            await stream.next_events()
        await added(engine)
        with pytest.raises(PeerClosed):
            await engine.recv()
        newer.close()

    with_engine(body)


def test_broken_message_ends_the_link() -> None:
    """A step whose columns differ in length is a broken link, not a silent loss of tokens."""

    async def body(client: EngineClient, engine: AsyncChannel[DataMessage]) -> None:
        stream = client.submit(
            [NewSequence([1], SamplingParams(1))], request_id="", deadline=deadline_in(FAR), priority=0
        )
        engine.send(StepOutput([await added(engine)], [1, 2], [0], [0]))

        with pytest.raises(EngineRestarting, match="broke"):
            await stream.next_events()

    with_engine(body)


def test_first_token_is_timed_once(byte_level_tokenizer: ModelTokenizer) -> None:
    """B60: two samples are one time to first token, and gaps are counted between tokens of the same sample only."""

    async def body(client: EngineClient, engine: AsyncChannel[DataMessage]) -> None:
        metrics = MetricStore(API_METRICS)
        with generation_of(byte_level_tokenizer, metrics, n=2) as generation:
            generation.submit(client, "r", deadline_in(FAR))
            first, second = await added(engine), await added(engine)
            await asyncio.sleep(0.01)
            engine.send(step((first, 75, 0), (second, 75, 0)))
            engine.send(step((first, 75, FinishReason.LENGTH), (second, 75, FinishReason.LENGTH)))
            async for _ in generation.deltas():
                pass
        samples = {sample.name: sample for sample in metrics.samples()}
        first_token = samples["ascendd_request_time_to_first_token_seconds"]

        assert sum(first_token.buckets) == 1
        assert first_token.value >= 0.01
        assert sum(samples["ascendd_request_inter_token_seconds"].buckets) == 2

    with_engine(body)
