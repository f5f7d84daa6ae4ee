"""GrammarDesk: sequences that wait for their grammar, which is compiled in a thread while the others go on."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from ascendd.errors import AscenddError, InvalidRequest
from ascendd.grammar.matcher import GrammarFactory
from ascendd.ipc.messages import AddSequence, Fault, Grammar, SequenceFailed


class GrammarDesk:
    """`wake` is called from the thread when something is ready to be taken."""

    def __init__(self, factory: GrammarFactory, wake: Callable[[], None]) -> None:
        self._factory = factory
        self._wake = wake
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar")
        self._waiting: set[int] = set()
        self._ready: queue.SimpleQueue[tuple[AddSequence, SequenceFailed | None]] = queue.SimpleQueue()

    def put(self, message: AddSequence) -> bool:
        """Have the grammar of `message` made, and it comes out of `take`; False where there is none to wait for."""
        grammar = message.params.grammar
        if grammar is None:
            return False
        self._waiting.add(message.seq_id)
        if self._factory.knows(grammar):
            self._make(message, grammar)
        else:
            self._pool.submit(self._make, message, grammar)
        return True

    def forget(self, seq_ids: list[int]) -> None:
        """Drop sequences that were aborted while they waited; unknown ids are ignored."""
        self._waiting.difference_update(seq_ids)

    def forget_all(self) -> None:
        """Drop all that wait."""
        self._waiting.clear()

    def take(self) -> Iterator[tuple[AddSequence, SequenceFailed | None]]:
        """Yield what is ready and still wanted, each with what is wrong with its grammar."""
        while not self._ready.empty():
            message, failed = self._ready.get_nowait()
            if message.seq_id in self._waiting:
                self._waiting.discard(message.seq_id)
                yield message, failed

    def _make(self, message: AddSequence, grammar: Grammar) -> None:
        failed = None
        try:
            self._factory.matcher(grammar)
        except AscenddError as error:
            failed = SequenceFailed(message.seq_id, Fault.from_error(error))
        # Whatever the library raises concerns this one request; its panics are no Exception.
        except BaseException as error:
            refusal = InvalidRequest(
                f"`{grammar.param}` cannot be used: {type(error).__name__}: {error}", param=grammar.param
            )
            failed = SequenceFailed(message.seq_id, Fault.from_error(refusal))
        self._ready.put((message, failed))
        self._wake()
