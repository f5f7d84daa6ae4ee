"""
An engine that computes nothing: one token a step for every sequence, STEP_MS apart, over the data link of the API.

    python tests/bench/null_engine.py FD STEP_MS VOCABULARY CONTEXT         started by front_end.py
"""

from __future__ import annotations

import socket
import sys
import time

from ascendd.errors import PeerClosed
from ascendd.ipc.channel import BlockingChannel
from ascendd.ipc.messages import (
    AbortSequences,
    AddSequence,
    DataMessage,
    EngineHello,
    FinishReason,
    Probe,
    ProbeDone,
    StepOutput,
)

FIRST_TOKEN_ID = 1000


def serve(sock: socket.socket, step_s: float, hello: EngineHello) -> None:
    """Answer until the API is gone."""
    channel: BlockingChannel[DataMessage] = BlockingChannel(sock, DataMessage)
    channel.send(hello)
    made: dict[int, int] = {}
    most: dict[int, int] = {}
    due = time.monotonic()
    while True:
        message = channel.recv(max(0.0, due - time.monotonic()) if made else None)
        while message is not None:
            if isinstance(message, AddSequence):
                made[message.seq_id], most[message.seq_id] = 0, message.params.max_tokens
            elif isinstance(message, AbortSequences):
                for seq_id in message.seq_ids:
                    made.pop(seq_id, None)
            elif isinstance(message, Probe):
                channel.send(ProbeDone(message.ticket))
            message = channel.recv(0)
        if not made or (now := time.monotonic()) < due:
            continue
        due = max(due + step_s, now)
        seq_ids = list(made)
        finish = []
        for seq_id in seq_ids:
            made[seq_id] += 1
            is_last = made[seq_id] >= most[seq_id]
            finish.append(int(FinishReason.LENGTH if is_last else FinishReason.RUNNING))
        # Ordinary words one after the other, so that the detokenizer has its usual work.
        tokens = [FIRST_TOKEN_ID + made[seq_id] for seq_id in seq_ids]
        channel.send(StepOutput(seq_ids, tokens, finish, [0] * len(seq_ids), [], {}))
        for seq_id, reason in zip(seq_ids, finish, strict=True):
            if reason:
                made.pop(seq_id)


def main(fd: int, step_ms: float, vocabulary: int, context: int) -> None:
    """Serve the link whose descriptor is `fd`."""
    hello = EngineHello(
        model_name="bench", max_model_len=context, vocab_size=vocabulary, eos_token_ids=(0,), num_blocks=4096,
        block_size=16, max_num_seqs=1024,
    )  # fmt: skip
    try:
        serve(socket.socket(fileno=fd), step_ms / 1000, hello)
    except PeerClosed:
        return


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
