"""Since when vLLM has work and makes no token."""

from __future__ import annotations

from ascendd.vllm.token_watch import TokenWatch


def test_tokens_that_come_are_progress():
    """However long requests run, a token since the last look keeps the time at nothing."""
    watch = TokenWatch(0.0)
    for second in range(1, 100):
        watch.saw(1, 0, float(second), float(second))

    assert watch.heartbeat(99.0).inflight_s == 0.0


def test_work_without_tokens_counts_from_the_last_one():
    """The time since the last token is what is told, with what runs and waits."""
    watch = TokenWatch(0.0)
    watch.saw(1, 0, 5.0, 10.0)
    watch.saw(1, 2, 5.0, 40.0)
    beat = watch.heartbeat(41.0)

    assert (beat.inflight_s, beat.num_running, beat.num_waiting) == (31.0, 1, 2)


def test_no_work_is_no_hang():
    """An idle engine makes no tokens and is well; the time starts with the work."""
    watch = TokenWatch(0.0)
    watch.saw(0, 0, 5.0, 10.0)
    watch.saw(0, 0, 5.0, 500.0)
    watch.saw(1, 0, 5.0, 501.0)

    assert watch.heartbeat(503.0).inflight_s == 3.0


def test_silence_counts_from_the_first_question():
    """A server that answers no page hangs since it was first asked, however often it is asked again."""
    watch = TokenWatch(0.0)
    watch.saw(0, 0, 5.0, 10.0)
    watch.asked(11.0)
    watch.asked(21.0)

    assert watch.heartbeat(31.0).inflight_s == 20.0
