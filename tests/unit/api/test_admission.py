"""Requests across a restart of the engine: who waits, for how long, and what the next engine is given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ascendd.api.admission import Admission
from ascendd.api.engine_client import EngineClient, NewSequence, OutputStream
from ascendd.errors import AscenddError, Draining, EngineRestarting, QueueFull
from ascendd.ipc.channel import AsyncChannel, socket_pair
from ascendd.ipc.messages import (
    AddSequence,
    DataMessage,
    EngineHello,
    EngineState,
    FinishReason,
    SamplingParams,
    StepOutput,
)

HELLO = EngineHello("m", 128, 290, (1,), 64, 16, 8)
READY = EngineState(ready=True, text="serving", retry_after_s=0)
RESTARTING = EngineState(ready=False, text="restarting in 8 s", retry_after_s=8)
FAILED = EngineState(ready=False, text="failed: ASD-E01", retry_after_s=300, is_final=True)

Engine = AsyncChannel[DataMessage]


class Scene:
    """A client, its admission, and the engines that come and go."""

    def __init__(self, restart_wait_s: float, max_queue: int) -> None:
        self.client = EngineClient(restart_wait_s=restart_wait_s)
        self.admission = Admission(self.client, max_queue, restart_wait_s)
        self.engines: list[Engine] = []

    async def engine(self) -> Engine:
        """Attach an engine, say that it is ready, and return its end."""
        ours, theirs = socket_pair()
        self.client.attach(ours)
        engine: Engine = AsyncChannel(theirs, DataMessage)
        self.engines.append(engine)
        engine.send(HELLO)
        await self.client.wait_attached()
        self.admission.set_state(READY)
        return engine

    async def lose(self, engine: Engine) -> None:
        """End `engine` and say that it is restarted."""
        engine.close()
        while self.client.hello is not None:
            await asyncio.sleep(0.001)
        self.admission.set_state(RESTARTING)

    def submit(self, *prompt: int) -> OutputStream:
        """Give the engine one sequence."""
        new = NewSequence(list(prompt), SamplingParams(max_tokens=4))
        return self.client.submit([new], request_id="r", deadline=deadline(), priority=0)


def deadline() -> float:
    """Loop time a minute from now."""
    return asyncio.get_running_loop().time() + 60


def play(
    body: Callable[[Scene], Coroutine[Any, Any, None]], *, restart_wait_s: float = 30.0, max_queue: int = 2
) -> None:
    """Run `body`, and let nothing that it left behind go unseen."""
    told: list[str] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))
        scene = Scene(restart_wait_s, max_queue)
        try:
            await asyncio.wait_for(body(scene), 30)
        finally:
            scene.client.detach("the test is over")
            for engine in scene.engines:
                engine.close()

    asyncio.run(run())
    assert told == []


async def order(engine: Engine) -> AddSequence:
    """The next sequence that reaches `engine`."""
    message = await engine.recv()
    assert isinstance(message, AddSequence)
    return message


async def error_of(stream: OutputStream) -> AscenddError:
    """The error that ends `stream`; tokens before it are passed over."""
    while True:
        try:
            await stream.next_events()
        except AscenddError as error:
            return error


def test_a_request_without_a_token_is_given_to_the_next_engine() -> None:
    """The same order, deadline and all, is sent again, in the order of arrival, and its answer reaches the client."""

    async def body(scene: Scene) -> None:
        first = await scene.engine()
        streams = [scene.submit(5, 6), scene.submit(7)]
        sent = [await order(first), await order(first)]
        await scene.lose(first)
        second = await scene.engine()
        again = [await order(second), await order(second)]
        second.send(StepOutput([again[0].seq_id], [9], [int(FinishReason.LENGTH)], [0]))
        events = await streams[0].next_events()

        assert again == sent
        assert [(event.token_id, event.finish) for event in events] == [(9, FinishReason.LENGTH)]

    play(body)


def test_a_request_with_a_token_ends_with_an_error_that_says_retry() -> None:
    """What was half said cannot be begun again, so the next engine is not given it."""

    async def body(scene: Scene) -> None:
        first = await scene.engine()
        started, fresh = scene.submit(5), scene.submit(6)
        seq_id = (await order(first)).seq_id
        first.send(StepOutput([seq_id], [9], [0], [0]))
        await started.next_events()
        await scene.lose(first)
        error = await error_of(started)
        second = await scene.engine()

        assert isinstance(error, EngineRestarting)
        assert "retry" in error.message
        assert (await order(second)).prompt_token_ids == [6]
        fresh.close()

    play(body)


def test_a_request_that_lost_two_engines_is_not_held_again() -> None:
    """A request that ends every engine it meets ends two at most."""

    async def body(scene: Scene) -> None:
        first = await scene.engine()
        stream = scene.submit(5)
        await scene.lose(first)
        second = await scene.engine()
        await order(second)
        await scene.lose(second)

        assert isinstance(await asyncio.wait_for(error_of(stream), 5), EngineRestarting)

    play(body)


def test_a_client_that_leaves_is_not_given_to_the_next_engine() -> None:
    """What was held for it is forgotten; the one behind it is served."""

    async def body(scene: Scene) -> None:
        first = await scene.engine()
        gone, stays = scene.submit(5), scene.submit(6)
        await scene.lose(first)
        gone.close()
        second = await scene.engine()

        assert (await order(second)).prompt_token_ids == [6]
        stays.close()

    play(body)


def test_nobody_is_held_longer_than_restart_wait_s() -> None:
    """Then the request ends, and the message names the setting."""

    async def body(scene: Scene) -> None:
        first = await scene.engine()
        stream = scene.submit(5)
        await scene.lose(first)
        error = await error_of(stream)

        assert isinstance(error, EngineRestarting)
        assert "admission.restart_wait_s (0.05 s)" in error.message
        with pytest.raises(EngineRestarting, match="restarting in 8 s"):
            await scene.admission.wait_ready(deadline())

    play(body, restart_wait_s=0.05)


def test_a_failed_instance_lets_nobody_wait() -> None:
    """Held requests and waiting ones end at once with the reason."""

    async def body(scene: Scene) -> None:
        first = await scene.engine()
        stream = scene.submit(5)
        await scene.lose(first)
        waiting = asyncio.ensure_future(scene.admission.wait_ready(deadline()))
        await asyncio.sleep(0)
        scene.admission.set_state(FAILED)

        assert (await error_of(stream)).message == "failed: ASD-E01"
        with pytest.raises(EngineRestarting, match="failed: ASD-E01"):
            await waiting

    play(body)


def test_a_new_request_waits_for_the_restart_and_no_more_than_max_queue_do() -> None:
    """Two wait, the third is refused, both go on once the engine serves."""

    async def body(scene: Scene) -> None:
        await scene.lose(await scene.engine())
        waiting = [asyncio.ensure_future(scene.admission.wait_ready(deadline())) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFull, match=r"admission\.max_queue is 2"):
            await scene.admission.wait_ready(deadline())
        held = [task.done() for task in waiting]
        engine = await scene.engine()
        await asyncio.gather(*waiting)
        engine.close()

        assert held == [False, False]

    play(body)


def test_nobody_waits_before_the_first_readiness_nor_while_draining() -> None:
    """A load takes minutes and a drain ends in none: both are answered at once."""

    async def body(scene: Scene) -> None:
        scene.admission.set_state(EngineState(ready=False, text="loading 3 %"))
        with pytest.raises(EngineRestarting, match="loading"):
            await scene.admission.wait_ready(deadline())
        await scene.lose(await scene.engine())
        waiting = asyncio.ensure_future(scene.admission.wait_ready(deadline()))
        await asyncio.sleep(0)
        scene.admission.drain()

        with pytest.raises(Draining):
            await waiting

    play(body)


def test_a_held_instance_takes_nothing_until_it_is_resumed() -> None:
    """Readiness and new requests are refused at once by the operator's hold, and taken again after it."""

    async def body(scene: Scene) -> None:
        await scene.engine()
        scene.admission.check_ready()
        scene.admission.hold(held=True)
        with pytest.raises(Draining, match="until it is resumed"):
            await scene.admission.wait_ready(asyncio.get_running_loop().time() + 30)
        scene.admission.hold(held=False)

        scene.admission.check_ready()

    play(body)


def test_new_limits_count_from_now_on() -> None:
    """A queue that was made longer takes what was refused before."""

    async def body(scene: Scene) -> None:
        await scene.engine()
        with scene.admission.place(8):
            with pytest.raises(QueueFull), scene.admission.place(1):
                pass
            scene.admission.set_limits(1, 0.0)

            with scene.admission.place(1):
                assert scene.admission.num_sequences == 9

    play(body, restart_wait_s=0.0, max_queue=0)


def test_a_request_waits_for_the_first_start_where_systemd_took_its_connection() -> None:
    """Socket activation: a request that came before the start is answered by it, or 503 after restart_wait_s."""

    async def body(scene: Scene) -> None:
        scene.admission.set_state(EngineState(ready=False, text="loading 3 %", may_wait=True))
        waiting = asyncio.ensure_future(scene.admission.wait_ready(deadline()))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        await scene.engine()

        assert await asyncio.wait_for(waiting, 5) is None

    play(body)


def test_a_request_before_the_first_word_of_the_supervisor_waits_for_it() -> None:
    """Without socket activation it is then told at once what the instance does."""

    async def body(scene: Scene) -> None:
        waiting = asyncio.ensure_future(scene.admission.wait_ready(deadline()))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        scene.admission.set_state(EngineState(ready=False, text="loading 3 %"))

        with pytest.raises(EngineRestarting, match="loading 3 %"):
            await asyncio.wait_for(waiting, 5)

    play(body)
