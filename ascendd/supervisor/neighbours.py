"""Other instances of this host, asked over their control sockets, for the status page."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TIMEOUT_S = 2.0
_MAX_LINE_BYTES = 1 << 20
_MOST = 64
_KEYS = ("instance", "model", "address", "phase", "held", "text", "degraded", "load")


async def ask_neighbours(sockets: Mapping[str, Path]) -> list[dict[str, Any]]:
    """
    Return a row of each instance of `sockets` (name to path) that runs and that this user may ask, by name.

    One that does not answer in two seconds is shown with the phase `silent`; one that is gone is left out.
    """
    rows = await asyncio.gather(*(_ask(name, path) for name, path in sorted(sockets.items())[:_MOST]))
    return [row for row in rows if row is not None]


async def _ask(name: str, path: Path) -> dict[str, Any] | None:
    try:
        reader, writer = await asyncio.wait_for(
            asyncio.open_unix_connection(str(path), limit=_MAX_LINE_BYTES), _TIMEOUT_S
        )
    except (OSError, asyncio.TimeoutError, TimeoutError):
        return None
    try:
        writer.write(b'{"verb": "status"}\n')
        await writer.drain()
        reply = json.loads(await asyncio.wait_for(reader.readline(), _TIMEOUT_S))
        if not isinstance(reply, dict) or not reply.get("ok"):
            return None
        return {key: reply.get(key) for key in _KEYS}
    except (asyncio.TimeoutError, TimeoutError):
        return {"instance": name, "phase": "silent"}
    except (OSError, ValueError):
        return None
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
