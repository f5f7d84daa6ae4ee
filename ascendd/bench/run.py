"""A whole measurement: learn the server's tokens, warm up, send the load, collect what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ascendd.bench.client import BenchClient, Target
from ascendd.bench.load import Lengths, PlannedRequest, PromptScale, make_prompt, plan_requests
from ascendd.bench.outcome import Outcome
from ascendd.errors import ServerUnreachable

_CALIBRATION_WORDS = (50, 250)


@dataclass(frozen=True)
class LoadPlan:
    """How much is sent: at `rate` requests per second, or always `concurrency` at once; until either end comes."""

    mix: Sequence[Lengths]
    rate: float | None
    concurrency: int
    num_requests: int | None
    duration_s: float | None
    constant: bool = False
    num_warm_up: int = 4
    num_shared_tokens: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Measurement:
    """Every outcome, what the clock said at the end, and the scale that prompts were made with."""

    model: str
    outcomes: list[Outcome]
    scale: PromptScale


Progress = Callable[[str], None]


async def measure(target: Target, plan: LoadPlan, progress: Progress) -> Measurement:
    """Run `plan` against `target`; no model in it means the server's first. Raises ServerUnreachable at the start."""
    async with BenchClient(target) as client:
        if not target.model:
            client.target = target = replace(target, model=await client.first_model())
        scale = await _calibrate(client)
        progress(f"{target.model}: {scale.tokens_per_word:.2f} tokens a word, warming up")
        run = _Run(client, plan, scale)
        await run.warm_up()
        outcomes = await run.load(progress)
    return Measurement(target.model, sorted(outcomes, key=lambda outcome: outcome.index), scale)


async def _calibrate(client: BenchClient) -> PromptScale:
    """Learn from the server's own usage how many tokens words are; a first failure is told at once."""
    points = []
    for num_words in _CALIBRATION_WORDS:
        outcome = await client.send(-1, make_prompt(num_words, f"calibrate {num_words}"), 1)
        # One token may be a piece of a character or the end itself: no text is no failure here.
        if outcome.error is not None and outcome.error != "the stream had no text":
            raise ServerUnreachable(f"{client.target.url} did not serve the first request: {outcome.error}")
        if outcome.num_prompt_tokens is None:
            return PromptScale()
        points.append((num_words, outcome.num_prompt_tokens))
    return PromptScale.from_two(*points)


class _Run:
    def __init__(self, client: BenchClient, plan: LoadPlan, scale: PromptScale) -> None:
        self._client = client
        self._plan = plan
        self._scale = scale
        self._shared_words = round(plan.num_shared_tokens / scale.tokens_per_word)

    async def warm_up(self) -> None:
        """Send requests of the mix that count for nothing."""
        plan = self._plan
        requests = plan_requests(plan.mix, rate=None, seed=plan.seed + 1)
        await asyncio.gather(*(self._send(next(requests), "warm-up") for _ in range(plan.num_warm_up)))

    async def load(self, progress: Progress) -> list[Outcome]:
        """Send the load and wait for all of it."""
        plan = self._plan
        requests = plan_requests(plan.mix, rate=plan.rate, constant=plan.constant, seed=plan.seed)
        self._client.restart_clock()
        outcomes: list[Outcome] = []
        num_sent = 0

        def take() -> PlannedRequest | None:
            nonlocal num_sent
            if plan.num_requests is not None and num_sent >= plan.num_requests:
                return None
            request = next(requests)
            at_s = self._client.now_s() if request.due_s is None else request.due_s
            if plan.duration_s is not None and at_s >= plan.duration_s:
                return None
            num_sent += 1
            return request

        async def one(request: PlannedRequest) -> None:
            outcomes.append(await self._send(request, "load"))
            progress(f"{len(outcomes)} of {num_sent} requests done, {self._client.now_s():.0f} s")

        async def worker() -> None:
            while (request := take()) is not None:
                await one(request)

        if plan.rate is None:
            await asyncio.gather(*(worker() for _ in range(plan.concurrency)))
            return outcomes
        tasks = []
        while (request := take()) is not None:
            assert request.due_s is not None
            await asyncio.sleep(max(0.0, request.due_s - self._client.now_s()))
            tasks.append(asyncio.create_task(one(request)))
        await asyncio.gather(*tasks)
        return outcomes

    async def _send(self, request: PlannedRequest, phase: str) -> Outcome:
        num_words = self._scale.num_words(request.num_prompt_tokens)
        seed = f"{self._plan.seed} {phase} {request.number}"
        prompt = make_prompt(num_words, seed, self._shared_words)
        return await self._client.send(request.number, prompt, request.num_output_tokens, request.due_s)
