"""How the KV cache shrinks over ends for want of memory, on a simulated clock."""

from __future__ import annotations

from ascendd.supervisor.memory_ladder import Exhausted, MemoryLadder, Rung


def ladder(num_blocks: int = 100, max_model_len: int = 160) -> MemoryLadder:
    """A ladder over ten minutes whose engine was ready with blocks of 16 tokens."""
    subject = MemoryLadder(600.0)
    subject.measured(num_blocks=num_blocks, block_size=16, max_model_len=max_model_len)
    return subject


def test_two_rungs_then_the_end() -> None:
    """A tenth less each time; the third end in the window gives up and says how many there were."""
    subject = ladder()

    assert [subject.on_out_of_memory(at) for at in (0.0, 100.0)] == [Rung(90, 1), Rung(81, 2)]
    assert subject.on_out_of_memory(600.0) == Exhausted("out of device memory 3 times within 600 s")


def test_old_ends_are_forgotten_and_the_cache_stays_small() -> None:
    """Beyond the window the count begins again, from the cache that was reached."""
    subject = ladder()
    subject.on_out_of_memory(0.0)
    subject.measured(num_blocks=90, block_size=16, max_model_len=160)

    assert subject.on_out_of_memory(600.1) == Rung(81, 1)


def test_one_sequence_of_full_length_must_fit() -> None:
    """At the floor it is taken, below it the ladder ends."""
    assert ladder(num_blocks=12).on_out_of_memory(0.0) == Rung(10, 1)
    assert isinstance(ladder(num_blocks=11).on_out_of_memory(0.0), Exhausted)


def test_an_engine_that_was_never_ready_is_started_as_it_was() -> None:
    """Nothing is known of its cache; the count goes on all the same."""
    subject = MemoryLadder(600.0)

    assert [subject.on_out_of_memory(at) for at in (0.0, 1.0)] == [Rung(None, 1), Rung(None, 2)]
    assert isinstance(subject.on_out_of_memory(2.0), Exhausted)
