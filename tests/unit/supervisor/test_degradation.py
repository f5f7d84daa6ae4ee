"""What an instance does without."""

from __future__ import annotations

from ascendd.supervisor.degradation import Degradation, Degradations


def test_degradations_come_and_go():
    """Each is told once, in a fixed order, until it is over; a change is told apart from a repetition."""
    subject = Degradations()

    changes = [
        subject.set(Degradation.CHILD, "metrics is down"),
        subject.set(Degradation.KV_CACHE, "KV cache of 90 blocks"),
        subject.set(Degradation.CHILD, "metrics is down"),
    ]
    both = subject.text
    over = subject.set(Degradation.CHILD, None), subject.set(Degradation.CHILD, None)

    assert changes == [True, True, False]
    assert both == "KV cache of 90 blocks; metrics is down"
    assert over == (True, False)
    assert subject.text == "KV cache of 90 blocks"
    assert (Degradation.CHILD in subject, Degradation.KV_CACHE in subject) == (False, True)
