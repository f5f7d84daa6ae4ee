"""Other instances are asked over their sockets, and none of them can hold up who asks."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from ascendd.supervisor import neighbours


async def listen(path: Path, line: bytes | None) -> asyncio.Server:
    """Answer each connection at `path` with `line`; never, where it is None."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        if line is not None:
            writer.write(line)
            await writer.drain()
        else:
            await reader.read()
        writer.close()

    return await asyncio.start_unix_server(serve, str(path))


def test_rows_are_of_those_that_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that answers has its row, a silent one is `silent`, and who refuses, rambles or is gone has none."""
    monkeypatch.setattr(neighbours, "_TIMEOUT_S", 0.3)
    status = {"ok": True, "instance": "a", "phase": "serving", "processes": [1, 2], "load": {"running": 3}}
    lines = {"a": json.dumps(status).encode() + b"\n", "b": None, "c": b'{"ok": false}\n', "d": b"hello\n"}

    async def work() -> list[dict[str, object]]:
        servers = [await listen(tmp_path / name, line) for name, line in lines.items()]
        rows = await neighbours.ask_neighbours({name: tmp_path / name for name in (*lines, "gone")})
        for server in servers:
            server.close()
        return rows

    rows = asyncio.run(work())

    assert [row["instance"] for row in rows] == ["a", "b"]
    assert rows[0]["load"] == {"running": 3}
    assert "processes" not in rows[0]
    assert rows[1]["phase"] == "silent"
