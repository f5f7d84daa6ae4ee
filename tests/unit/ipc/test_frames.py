"""Frames: however the stream is cut, the messages are the same; what is no message is an error with a name."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascendd.errors import FrameTooLarge, ProtocolMismatch
from ascendd.ipc import frames
from ascendd.ipc.frames import MAX_FRAME_BYTES, FrameDecoder, encode_frame
from ascendd.ipc.messages import (
    AbortSequences,
    AddSequence,
    ControlMessage,
    DataMessage,
    Heartbeat,
    Progress,
    Sample,
    SamplingParams,
    SequenceFailed,
    Stats,
    StepOutput,
)
from ascendd.ipc.messages import Fault as WireFault

ids = st.integers(min_value=0, max_value=2**40)
tokens = st.lists(st.integers(min_value=0, max_value=200_000), max_size=20)
messages = st.one_of(
    st.builds(
        AddSequence, ids, tokens, st.builds(SamplingParams, st.integers(1, 100), st.floats(0, 2)), st.text(max_size=9)
    ),
    st.builds(AbortSequences, st.lists(ids, max_size=5)),
    st.builds(StepOutput, tokens, tokens, tokens, tokens),
    st.builds(SequenceFailed, ids, st.builds(WireFault, st.just("ASD-E02"), st.text(max_size=40))),
)


@given(sent=st.lists(messages, max_size=8), data=st.data())
def test_any_cut_of_the_stream_gives_the_same_messages(sent: list[object], data: st.DataObject) -> None:
    """Bytes fed in any pieces yield the messages that were encoded, in order, and leave nothing behind."""
    stream = b"".join(encode_frame(message) for message in sent)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12).map(sorted))
    decoder: FrameDecoder[object] = FrameDecoder(DataMessage)

    received: list[object] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += decoder.feed(stream[start:end])

    assert received == sent
    assert decoder.num_pending_bytes == 0


def test_byte_by_byte() -> None:
    """A message becomes whole with its last byte and not before."""
    frame = encode_frame(Progress("loading", 0.5))
    decoder: FrameDecoder[object] = FrameDecoder(ControlMessage)

    early = [decoder.feed(frame[i : i + 1]) for i in range(len(frame) - 1)]

    assert early == [[]] * (len(frame) - 1)
    assert decoder.num_pending_bytes == len(frame) - 1
    assert decoder.feed(frame[-1:]) == [Progress("loading", 0.5)]


def test_histogram_sample_keeps_its_buckets() -> None:
    """Labels and buckets cross the border as tuples, so that samples stay hashable."""
    stats = Stats([Sample("ascendd_x_seconds", 1.5, ("a",), (1, 0, 2))])

    (received,) = FrameDecoder(ControlMessage).feed(encode_frame(stats))

    assert received == stats
    assert received.samples[0].buckets == (1, 0, 2)


def test_frame_too_large_to_send(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message beyond the limit is refused where it is made, by name and size."""
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 100)

    with pytest.raises(FrameTooLarge, match="AbortSequences has 264 bytes, more than the 100 a frame"):
        encode_frame(AbortSequences(list(range(200, 300))))


def test_frame_too_large_to_receive() -> None:
    """An announced length beyond the limit is refused before its bytes are waited for."""
    decoder: FrameDecoder[object] = FrameDecoder(DataMessage)

    with pytest.raises(FrameTooLarge, match=f"announced a frame of {MAX_FRAME_BYTES + 1} bytes"):
        decoder.feed(struct.pack(">I", MAX_FRAME_BYTES + 1))


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", b"\x93\xa4text", encode_frame(AbortSequences([1]))[4:-1], b"\x92\xa9heartbeat\xa1x"],
    ids=["empty", "never used byte", "half an array", "cut short", "wrong type"],
)
def test_corrupt_payload(payload: bytes) -> None:
    """A payload that is no message of the link is a protocol mismatch, not a crash."""
    frame = struct.pack(">I", len(payload)) + payload

    with pytest.raises(ProtocolMismatch, match=f"frame of {len(payload)} bytes is no known message"):
        FrameDecoder(ControlMessage).feed(frame)


@given(noise=st.binary(max_size=200))
def test_noise_never_escapes_as_another_error(noise: bytes) -> None:
    """Whatever a peer writes, the decoder answers with messages, patience or one of its two errors."""
    decoder: FrameDecoder[object] = FrameDecoder(DataMessage)

    try:
        received = decoder.feed(noise)
    except (FrameTooLarge, ProtocolMismatch):
        return

    assert all(isinstance(message, (AddSequence, AbortSequences, StepOutput, SequenceFailed)) for message in received)


def test_message_of_the_other_link_is_refused() -> None:
    """A control message on a data link is a mismatch: its tag is not of that union."""
    with pytest.raises(ProtocolMismatch, match="heartbeat"):
        FrameDecoder(DataMessage).feed(encode_frame(Heartbeat(step_seq=1)))
