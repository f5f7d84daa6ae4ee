"""The pipe on which a process tells where each of its threads is."""

from __future__ import annotations

import os

from ascendd.ipc.stack_pipe import StackPipe, own_stacks


def test_the_own_stacks_name_who_asks() -> None:
    """The text holds the function that asks, with the file it is in."""
    text = own_stacks()

    assert "test_stack_pipe.py" in text
    assert "in test_the_own_stacks_name_who_asks" in text


def test_neither_end_ever_waits() -> None:
    """An empty pipe reads as nothing, a full one takes no more, and what fits is read whole, also after the writer left."""
    pipe = StackPipe()

    assert pipe.read() == ""
    taken = 0
    for _ in range(100):
        try:
            taken += os.write(pipe.writer, b"x" * 65_536)
        except BlockingIOError:
            break
    pipe.given()
    assert 65_536 <= taken < 100 * 65_536
    assert pipe.read() == "x" * taken
    pipe.close()
    assert pipe.read() == ""
