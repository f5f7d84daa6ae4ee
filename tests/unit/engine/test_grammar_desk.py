"""Sequences wait for their grammar while others go on; a bad one fails its own sequence alone."""

from __future__ import annotations

import threading

import pytest

from ascendd.engine.grammar_desk import GrammarDesk
from ascendd.errors import InvalidRequest
from ascendd.ipc.messages import AddSequence, Grammar, SamplingParams


class ScriptedFactory:
    """Compiles once `go` is set; `bad` is refused, `panic` raises what is no Exception."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.known: set[str] = set()

    def knows(self, grammar: Grammar) -> bool:
        return grammar.text in self.known

    def matcher(self, grammar: Grammar) -> None:
        assert self.knows(grammar) or self.go.wait(10)
        if grammar.text == "bad":
            raise InvalidRequest("bad grammar", param=grammar.param)
        if grammar.text == "panic":
            raise BaseException("assertion failed")  # noqa: TRY002


def order(seq_id: int, text: str | None) -> AddSequence:
    grammar = None if text is None else Grammar(text, "guided_json")
    return AddSequence(seq_id, [1], SamplingParams(max_tokens=1, grammar=grammar))


@pytest.fixture
def desk() -> GrammarDesk:
    """A desk whose `woken` counts its calls for attention."""
    woken = threading.Semaphore(0)
    made = GrammarDesk(ScriptedFactory(), woken.release)  # type: ignore[arg-type]
    made.woken = woken  # type: ignore[attr-defined]
    return made


def test_each_comes_out_once_it_is_compiled(desk: GrammarDesk) -> None:
    """Without a grammar nothing waits; those with one come out after `wake`, bad ones with their reason."""
    free = desk.put(order(1, None))
    waits = [desk.put(order(seq_id, text)) for seq_id, text in ((2, "good"), (3, "bad"), (4, "panic"))]
    early = list(desk.take())
    desk._factory.go.set()  # type: ignore[attr-defined]
    for _ in range(3):
        assert desk.woken.acquire(timeout=120)  # type: ignore[attr-defined]
    taken = {message.seq_id: failed for message, failed in desk.take()}

    assert free is False
    assert waits == [True] * 3
    assert early == []
    assert taken[2] is None
    assert taken[3].fault.message == "bad grammar"
    assert taken[4].fault.code == InvalidRequest.code
    assert list(desk.take()) == []


def test_an_aborted_sequence_does_not_come_out(desk: GrammarDesk) -> None:
    """What was aborted while it waited is gone; the others are not."""
    desk.put(order(1, "good"))
    desk.put(order(2, "good"))
    desk.forget([1, 99])
    desk._factory.go.set()  # type: ignore[attr-defined]
    for _ in range(2):
        assert desk.woken.acquire(timeout=120)  # type: ignore[attr-defined]

    assert [message.seq_id for message, _ in desk.take()] == [2]


def test_a_known_grammar_waits_for_nobody(desk: GrammarDesk) -> None:
    """A grammar that was compiled before passes one that is being compiled."""
    desk.put(order(1, "slow"))
    desk._factory.known.add("known")  # type: ignore[attr-defined]
    desk.put(order(2, "known"))

    assert [message.seq_id for message, _ in desk.take()] == [2]
    desk._factory.go.set()  # type: ignore[attr-defined]
