"""Where logs come from: files, plain or gzipped, folders of them, standard input; always as a stream of blocks."""

from __future__ import annotations

import io
import os
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from ascendd.diagnose.envelope import without_envelope
from ascendd.errors import AscenddError, ProbeUnavailable

BLOCK_BYTES = 256 * 1024
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class Source:
    """One log. `blocks` is read once."""

    name: str
    blocks: Iterable[bytes]
    # An empty file says that its writer never got to a first line; an empty pipe says nothing.
    is_file: bool = True


def file_sources(names: Iterable[str]) -> Iterator[Source | AscenddError]:
    """Yield a source for each of `names`: a file, a folder (all files below it), or `-`; an error where none opens."""
    for name in names:
        if name == "-":
            yield Source("-", _text(stream_blocks(cast(io.BufferedReader, sys.stdin.buffer))), is_file=False)
        elif Path(name).is_dir():
            paths = [path for path in sorted(Path(name).rglob("*")) if path.is_file() and not path.is_symlink()]
            if not paths:
                yield ProbeUnavailable(f"{name} holds no file", path=name)
            yield from (_open(str(path)) for path in paths)
        else:
            yield _open(name)


def _open(name: str) -> Source | AscenddError:
    if not os.access(name, os.R_OK):
        reason = "cannot be read by this user" if Path(name).exists() else "does not exist"
        return ProbeUnavailable(f"{name} {reason}", path=name)
    return Source(name, _text(_file_blocks(name)))


def _text(blocks: Iterable[bytes]) -> Iterator[bytes]:
    return without_envelope(unpacked(blocks))


def _file_blocks(name: str) -> Iterator[bytes]:
    with Path(name).open("rb", buffering=0) as stream:
        yield from stream_blocks(stream)


def stream_blocks(stream: io.RawIOBase | io.BufferedReader) -> Iterator[bytes]:
    """Yield what `stream` holds in blocks of at most BLOCK_BYTES, each as soon as it is there."""
    read = stream.read1 if isinstance(stream, io.BufferedReader) else stream.read
    while block := read(BLOCK_BYTES):
        yield block


def unpacked(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield `blocks`, decompressed where they are gzip; output blocks stay small whatever the ratio."""
    iterator = iter(blocks)
    first = next(iterator, b"")
    if not first.startswith(_GZIP_MAGIC):
        if first:
            yield first
        yield from iterator
        return
    engine = zlib.decompressobj(wbits=31)
    pending = first
    while True:
        while pending:
            try:
                data = engine.decompress(pending, BLOCK_BYTES)
            except zlib.error:
                # What is broken or no gzip any more ends here; what came before was read.
                return
            if data:
                yield data
            pending = engine.unconsumed_tail or engine.unused_data
            if engine.eof:
                engine = zlib.decompressobj(wbits=31)
        block = next(iterator, None)
        if block is None:
            return
        pending = block
