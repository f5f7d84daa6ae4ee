"""
What a step's message to the ranks costs: `python tests/bench/rank_message.py [NUM_RANKS]`.

A decode of 1, 8, 32 and 128 sequences of 1,000 tokens: made from the scheduler's output, sent to each rank over a socket
pair, read and turned into a step again. Microseconds of one core, medians; each rank reads in its own process in service.
"""

from __future__ import annotations

import statistics
import sys
import time

from ascendd.engine.exec.step_delta import SequenceMirror, StepEncoder
from ascendd.engine.sched.output import ScheduledChunk, SchedulerOutput
from ascendd.engine.sequence import Sequence, SequenceStatus
from ascendd.ipc.channel import BlockingChannel, socket_pair
from ascendd.ipc.frames import encode_frame
from ascendd.ipc.messages import SamplingParams
from ascendd.ipc.rank_messages import ToRank

LENGTH = 1000
BLOCK_SIZE = 16
REPEATS = 300


def bench(num_seqs: int, num_ranks: int) -> str:
    """Return one line of figures."""
    pairs = [socket_pair() for _ in range(num_ranks)]
    senders = [BlockingChannel(ours, ToRank) for ours, _ in pairs]
    readers = [BlockingChannel(theirs, ToRank) for _, theirs in pairs]
    mirrors = [SequenceMirror() for _ in pairs]
    encoder = StepEncoder()
    sequences = []
    for index in range(num_seqs):
        sequence = Sequence(index, list(range(LENGTH)), SamplingParams(max_tokens=100), seed=index)
        sequence.status = SequenceStatus.RUNNING
        sequence.block_ids = list(range(LENGTH // BLOCK_SIZE + 1))
        sequences.append(sequence)
    make, send, read, size = [], [], [], 0
    for step in range(REPEATS):
        output = SchedulerOutput(step + 1, [ScheduledChunk(seq, seq.num_tokens - 1, 1) for seq in sequences])
        started = time.perf_counter()
        message = encoder.encode(output)
        made = time.perf_counter()
        for sender in senders:
            sender.send(message)
        sent = time.perf_counter()
        received = readers[0].recv()
        mirrors[0].decode(received)  # type: ignore[arg-type]
        done = time.perf_counter()
        for reader in readers[1:]:
            reader.recv()
        size = len(encode_frame(message))
        if step:  # the first introduces the sequences
            make.append(made - started)
            send.append(sent - made)
            read.append(done - sent)
        for sequence in sequences:
            sequence.token_ids.append(step % 100)
            if sequence.num_tokens % BLOCK_SIZE == 1:
                sequence.block_ids.append(step)
    figures = [f"{name} {1e6 * statistics.median(times):6.0f} us" for name, times in
               (("make", make), (f"send to {num_ranks}", send), ("read at a rank", read))]  # fmt: skip
    return f"{num_seqs:4d} sequences: {size:6d} bytes, {', '.join(figures)}"


def main() -> None:
    """Print a line for each batch size."""
    num_ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    for num_seqs in (1, 8, 32, 128):
        print(bench(num_seqs, num_ranks))


if __name__ == "__main__":
    main()
