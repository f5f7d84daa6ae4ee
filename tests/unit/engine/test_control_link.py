"""The engine's thread to the supervisor, over a real socket pair."""

from __future__ import annotations

import os
import time

from ascendd.engine.control_link import ControlLink
from ascendd.engine.progress import StepProgress
from ascendd.ipc.channel import BlockingChannel, socket_pair
from ascendd.ipc.messages import ControlMessage, Heartbeat, SetLimits


def test_orders_do_not_keep_the_heartbeat_back(monkeypatch):
    """With an order ten times a second the supervisor still hears the heartbeat, and every order arrives."""
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    ours, theirs = socket_pair()
    supervisor, engine = (BlockingChannel(end, ControlMessage) for end in (ours, theirs))
    link = ControlLink(engine, StepProgress())
    link.start()
    deadline, sent, heard = time.monotonic() + 90, 0, None
    while heard is None and time.monotonic() < deadline:
        supervisor.send(SetLimits(8 + sent, 64))
        sent += 1
        heard = supervisor.recv(0.1)
    seen = [link.limits.get(timeout=90).max_num_seqs for _ in range(sent)]
    ours.close()
    link.join(90)
    theirs.close()

    assert ended == [0]
    assert isinstance(heard, Heartbeat)
    assert seen == [8 + number for number in range(sent)]
