"""A headless Chromium for tests of pages, driven by its own debugging protocol over one web socket."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str | None:
    """Return the browser's path, None where there is none."""
    return next((path for path in map(shutil.which, NAMES) if path is not None), None)


class Page:
    """One tab. `console` has each error and warning of the page, network errors among them."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._number = 0
        self.console: list[str] = []

    async def read(self) -> None:
        """Take answers and events until the browser ends."""
        async for message in self._socket:
            body = json.loads(message.data)
            if (waiter := self._answers.pop(body.get("id", 0), None)) is not None:
                waiter.set_result(body)
            params = body.get("params", {})
            match body.get("method"):
                case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                    self.console.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
                case "Runtime.exceptionThrown":
                    details = params["exceptionDetails"]
                    self.console.append(details.get("exception", {}).get("description", details["text"]))
                case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                    self.console.append(str([one.get("value") for one in params["args"]]))

    async def send(self, method: str, **params: object) -> dict[str, Any]:
        """Return the result of one command."""
        self._number += 1
        waiter = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        body = await asyncio.wait_for(waiter, 60)
        assert "error" not in body, (method, body)
        result: dict[str, Any] = body["result"]
        return result

    async def run(self, script: str) -> Any:
        """Return the value of the expression `script`; a promise is awaited."""
        result = await self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    async def until(self, condition: str, timeout_s: float = 60.0) -> None:
        """Wait until the expression `condition` is true."""
        deadline = time.monotonic() + timeout_s
        while not await self.run(f"Boolean({condition})"):
            if time.monotonic() > deadline:
                shown = await self.run("document.body.innerText")
                raise AssertionError(
                    f"{condition} was not true within {timeout_s:g} s; console {self.console}\n{shown}"
                )
            await asyncio.sleep(0.1)

    async def size(self, width: int, height: int, *, phone: bool = False) -> None:
        """Show the page as on a screen of this size."""
        await self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
        )

    async def scheme(self, name: str) -> None:
        """Be a system that is `light` or `dark`."""
        await self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    async def press(self, key: str) -> None:
        """Press one key, such as Tab or Enter."""
        code = {"Tab": 9, "Enter": 13}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            await self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    async def write(self, text: str) -> None:
        """Write `text` where the focus is."""
        await self.send("Input.insertText", text=text)

    async def picture(self, path: Path) -> None:
        """Write a PNG of the whole page."""
        height = await self.run("document.documentElement.scrollHeight")
        width = await self.run("window.innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = await self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))


@asynccontextmanager
async def open_page(url: str) -> AsyncIterator[Page]:
    """Yield a tab that shows `url`, in a browser of its own."""
    program = find_chromium()
    assert program is not None
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as folder:
        command = [
            program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--lang=en-US",
            "--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-port=0", f"--user-data-dir={folder}",
            "about:blank",
        ]  # fmt: skip
        log = Path(folder) / "log"
        with log.open("wb") as stream:
            process = await asyncio.create_subprocess_exec(*command, stdout=stream, stderr=subprocess.STDOUT)
        try:
            port = await _port(log)
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                    (tab,) = [one for one in await answer.json(content_type=None) if one["type"] == "page"]
                async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    page = Page(socket)
                    reader = asyncio.create_task(page.read())
                    for domain in ("Page", "Runtime", "Log"):
                        await page.send(f"{domain}.enable")
                    await page.send("Page.navigate", url=url)
                    await page.until("location.href !== 'about:blank' && document.readyState === 'complete'")
                    yield page
                    reader.cancel()
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _port(log: Path) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if match := re.search(r"DevTools listening on ws://127\.0\.0\.1:(\d+)/", log.read_text(errors="replace")):
            return int(match[1])
        await asyncio.sleep(0.1)
    raise AssertionError(log.read_text(errors="replace"))
