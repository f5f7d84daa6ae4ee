"""What the control thread tells of the steps, on a simulated clock."""

from __future__ import annotations

from ascendd.engine.progress import FORGET, StepProgress


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def step(progress, clock, num_tokens, took_s):
    """Run one step."""
    progress.begin()
    progress.scheduled(num_tokens)
    clock.now += took_s
    progress.end(1, 0)


def test_a_running_step_tells_its_age_and_its_size():
    """The heartbeat says for how long the step has run and how many tokens it has; afterwards none runs."""
    clock = Clock()
    progress = StepProgress(clock)
    progress.begin()
    progress.scheduled(512)
    clock.now = 7.0

    during = progress.heartbeat()
    progress.end(3, 2)
    after = progress.heartbeat()

    assert (during.step_seq, during.inflight_s, during.step_tokens) == (0, 7.0, 512)
    assert (after.step_seq, after.inflight_s, after.num_running, after.num_waiting) == (1, 0.0, 3, 2)


def test_the_worst_time_of_a_token_is_remembered_for_a_while():
    """A slow prefill counts at once and fades; small steps say nothing of a token."""
    clock = Clock()
    progress = StepProgress(clock)

    seen = []
    for num_tokens, took_s in ((100, 10.0), (100, 1.0), (1, 5.0), (100, 20.0)):
        step(progress, clock, num_tokens, took_s)
        seen.append(progress.heartbeat().token_s)

    assert seen == [0.1, FORGET * 0.1, FORGET * 0.1, 0.2]
