"""The ledger of self-tests."""

from __future__ import annotations

from ascendd.supervisor.self_test import SelfTest


def test_an_answer_counts_once_and_only_for_its_link() -> None:
    """Late, doubled and foreign answers are nobody's."""
    ledger = SelfTest()
    ledger.started(3)

    assert not ledger.take(2)
    assert ledger.take(3)
    assert not ledger.take(3)


def test_a_cancelled_test_has_no_answer() -> None:
    """What was asked of a process that ended is not taken from the next one."""
    ledger = SelfTest()
    ledger.started(1)
    ledger.cancel()

    assert not ledger.take(1)


def test_an_engine_that_failed_is_not_asked_again() -> None:
    """Only another process may be."""
    ledger = SelfTest()
    ledger.failed(7)

    assert not ledger.may_start(7)
    assert ledger.may_start(8)


def test_a_proven_engine_stays_proven() -> None:
    """It serves at once when only the API was restarted."""
    ledger = SelfTest()
    ledger.passed(4)

    assert ledger.is_proven(4)
    assert not ledger.is_proven(5)
