"""Frames: a 4-byte big-endian length, then that many bytes of msgpack. Pure: bytes in, messages out."""

from __future__ import annotations

import struct
from typing import Any, Generic, TypeVar

import msgspec

from ascendd.errors import FrameTooLarge, ProtocolMismatch

MAX_FRAME_BYTES = 64 * 1024 * 1024
_LENGTH = struct.Struct(">I")

M = TypeVar("M")
_encoder = msgspec.msgpack.Encoder()


def encode_frame(message: msgspec.Struct) -> bytes:
    """
    Return `message` as one frame.

    Raises FrameTooLarge if its payload is longer than MAX_FRAME_BYTES.
    """
    payload = _encoder.encode(message)
    if len(payload) > MAX_FRAME_BYTES:
        raise FrameTooLarge(
            f"{type(message).__name__} has {len(payload)} bytes, more than the {MAX_FRAME_BYTES} a frame may have",
            num_bytes=len(payload),
        )
    return _LENGTH.pack(len(payload)) + payload


class FrameDecoder(Generic[M]):
    """Collects bytes as they come and yields the whole messages among them, in order."""

    def __init__(self, union: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(union)
        self._buffer = bytearray()

    @property
    def num_pending_bytes(self) -> int:
        """Bytes of a frame that is not whole yet; more than 0 at EOF means that the peer died while writing."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[M]:
        """
        Add `data` and return the messages that are now whole.

        Raises FrameTooLarge on a length beyond the limit, ProtocolMismatch on a payload that is no known message.
        """
        buffer = self._buffer
        buffer += data
        messages: list[M] = []
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, start)
            if length > MAX_FRAME_BYTES:
                raise FrameTooLarge(
                    f"peer announced a frame of {length} bytes, the limit is {MAX_FRAME_BYTES}", num_bytes=length
                )
            end = start + _LENGTH.size + length
            if len(buffer) < end:
                break
            try:
                messages.append(self._decoder.decode(memoryview(buffer)[start + _LENGTH.size : end]))
            except (msgspec.MsgspecError, ValueError) as error:
                raise ProtocolMismatch(f"frame of {length} bytes is no known message: {error}") from error
            start = end
        del buffer[:start]
        return messages
