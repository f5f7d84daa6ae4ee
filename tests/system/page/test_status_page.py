"""The status page of a real daemon in a real headless Chromium. ASCENDD_SCREENSHOTS=FOLDER writes the pictures there."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from ascendd.checks import npu_health, npu_sensors
from chromium import Page, find_chromium, open_page
from loopback_ports import free_ports

from ascendd.api.routes_status import ASSETS
from ascendd.config.credentials import Credential, digest_of
from ascendd.host.npu_smi_table import parse_info
from ascendd.supervisor.board import StatsBoard

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(400)]

TINY_MODEL = Path(__file__).resolve().parents[1] / "tiny_qwen2.py"
RECORDED = Path(__file__).resolve().parents[2] / "fixtures" / "npu-smi"
PAGE_FILES = Path(__file__).resolve().parents[3] / "ascendd" / "api" / "status_page"
KEY = "page-test-admin"
INFER_KEY = "page-test-infer"
PHONE = (390, 844)
DESK = (1180, 900)
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]

# The points of the longest curve.
LONGEST_CURVE = (
    "Math.max(...[...document.querySelectorAll('.curve')].map((one) => one.getAttribute('d').split('L').length))"
)


@dataclass
class Daemon:
    """A running instance that asks for keys."""

    process: subprocess.Popen[bytes]
    url: str

    def child(self, role: str) -> psutil.Process:
        """Return the child process of `role`."""
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.Error):
                if f"_{role}" in child.cmdline():
                    return child
        raise AssertionError(f"no process {role}")


@pytest.fixture(scope="module")
def axe() -> str:
    """The source of axe-core, which the package beside this test carries."""
    found = importlib.util.find_spec("axe_playwright_python")
    if found is None or found.origin is None:
        pytest.skip("axe-core is not installed; `make venv-page` does that")
    return (Path(found.origin).parent / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module", autouse=True)
def _browser() -> None:
    if find_chromium() is None:
        pytest.skip("chromium is not installed; on Debian: apt install chromium")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Daemon]]:
    """Start instances; all end with the module."""
    folder = tmp_path_factory.mktemp("page")
    subprocess.run([sys.executable, str(TINY_MODEL), str(folder / "tiny")], check=True, capture_output=True, timeout=60)
    keys = folder / "keys"
    keys.write_text(
        Credential("ops", digest_of(KEY)).line()
        + "\n"
        + Credential("app", digest_of(INFER_KEY), frozenset({"infer"})).line()
        + "\n"
    )
    keys.chmod(0o600)
    running: list[Daemon] = []

    def begin(name: str, backoff_s: float = 1.0) -> Daemon:
        api_port, metrics_port = free_ports(2)
        config = folder / f"{name}.yaml"
        config.write_text(
            f"model: {{path: {folder / 'tiny'}, name: qwen2-7b-instruct}}\n"
            f"listen: {{port: {api_port}, api_key_file: {keys}}}\n"
            f"metrics: {{port: {metrics_port}}}\n"
            "engine: {device: cpu, max_num_blocks: 96, num_threads: 1, max_num_seqs: 4, block_size: 16}\n"
            f"recovery: {{backoff_min_s: {backoff_s}, backoff_max_s: {backoff_s}}}\n"
        )
        command = [sys.executable, "-m", "ascendd", "run", "--instance", name, "--config", str(config)]
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder / "run"), "OMP_NUM_THREADS": "1"}
        log_path = folder / f"{name}.log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        daemon = Daemon(process, f"http://127.0.0.1:{api_port}")
        running.append(daemon)
        for _ in range(600):
            assert process.poll() is None, log_path.read_text()
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{daemon.url}/readyz", timeout=5):
                return daemon
            signal.sigtimedwait((), 0.2)
        raise AssertionError(log_path.read_text())

    yield begin
    for daemon in running:
        daemon.process.terminate()
        daemon.process.wait(60)


async def serve_clients(url: str, *, until: asyncio.Event, clients: int = 7) -> int:
    """Ask as many clients do, one request after another each; return how many were answered."""
    answered = 0

    async def client(number: int, session: aiohttp.ClientSession) -> None:
        nonlocal answered
        while not until.is_set():
            body = {
                "model": "qwen2-7b-instruct",
                "prompt": "hello world " * (3 + number % 4),
                "max_tokens": 90 + 30 * number,
            }
            with contextlib.suppress(aiohttp.ClientError):
                async with session.post(f"{url}/v1/completions", json=body) as answer:
                    answered += answer.status == 200
            await asyncio.sleep(0.2 * (number % 3))

    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {INFER_KEY}"}) as session:
        await asyncio.gather(*(client(number, session) for number in range(clients)))
    return answered


async def log_in(page: Page) -> None:
    """Write the key as a person at the keyboard does."""
    await page.until("!document.getElementById('login').hidden && document.activeElement.id === 'key'")
    await page.write(KEY)
    await page.press("Enter")
    await page.until("!document.getElementById('board').hidden")


async def violations(page: Page, axe: str) -> list[str]:
    """Return what axe-core finds on the page as it is shown."""
    await page.run(f"{axe};true")
    script = f"axe.run(document, {{runOnly: {json.dumps(RULES)}}}).then((found) => found.violations)"
    found: list[dict[str, Any]] = await page.run(script)
    return [f"{one['id']}: {one['help']}: {one['nodes'][0]['html']}" for one in found]


async def picture(page: Page, name: str) -> None:
    """Write the page into the folder of pictures, where one is wanted."""
    if folder := os.environ.get("ASCENDD_SCREENSHOTS"):
        await page.picture(Path(folder) / f"{name}.png")


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end."""
    asyncio.run(work)


def test_the_page_is_live_clean_and_readable(start: Callable[..., Daemon], axe: str) -> None:
    """Under load it shows moving figures in light, dark, Chinese and on a phone; no console error, nothing from axe-core."""
    daemon, _other = start("qwen2"), start("phi3")

    async def look() -> None:
        done = asyncio.Event()
        load = asyncio.create_task(serve_clients(daemon.url, until=done))
        async with open_page(f"{daemon.url}/status") as page:
            await page.size(*DESK)
            await page.scheme("light")
            assert await violations(page, axe) == []
            await picture(page, "status-login")
            await log_in(page)
            await page.until("document.getElementById('phase').textContent === 'Serving'")
            await page.until("document.querySelectorAll('#instances tbody tr').length === 2")
            points = int(os.environ.get("ASCENDD_SCREENSHOT_POINTS", "4"))
            await page.until(
                f"document.querySelectorAll('.plot .curve').length >= 7 && {LONGEST_CURVE} >= {points}", 300
            )
            await page.until("document.querySelector('#tiles dd').textContent !== '0'")
            assert await violations(page, axe) == []
            await picture(page, "status-light")
            await page.scheme("dark")
            await page.run("document.querySelector('details').open = true")
            await page.until("document.querySelectorAll('details table tbody tr').length > 1")
            assert await violations(page, axe) == []
            await page.run("document.querySelector('details').open = false")
            await picture(page, "status-dark")
            await page.run("document.getElementById('language').click()")
            await page.until("document.getElementById('phase').textContent === '服务中'")
            assert await page.run("document.documentElement.lang") == "zh-CN"
            await page.size(*PHONE, phone=True)
            await page.scheme("light")
            assert await violations(page, axe) == []
            assert await page.run("document.documentElement.scrollWidth <= window.innerWidth")
            await picture(page, "status-phone")
            # A new viewer of the same tab needs no new key; one of another tab does.
            await page.send("Page.reload")
            await page.until("document.readyState === 'complete' && !document.getElementById('board').hidden")
            assert page.console == []
        done.set()
        assert await load > 0

    run(look())


def test_a_dead_engine_and_a_dead_daemon_are_told(start: Callable[..., Daemon], axe: str) -> None:
    """The end of the engine is red, with its reason, episode and command; without a daemon the page says so and dims."""
    daemon = start("deepseek", backoff_s=45.0)

    async def look() -> None:
        async with open_page(f"{daemon.url}/status") as page:
            await page.size(*DESK)
            await page.scheme("light")
            await log_in(page)
            await page.until("document.getElementById('phase').textContent === 'Serving'")
            done = asyncio.Event()
            load = asyncio.create_task(serve_clients(daemon.url, until=done))
            await page.until(f"{LONGEST_CURVE} >= 3", 300)
            daemon.child("engine").kill()
            done.set()
            await page.until("document.getElementById('phase').textContent === 'Not serving'")
            await page.until("document.getElementById('incident').innerText.includes('ascendd report deepseek --last')")
            assert "restarting in" in await page.run("document.getElementById('why').textContent")
            assert await violations(page, axe) == []
            # What was measured before the end is in the curves, and no figure of now.
            tiles = await page.run("[...document.querySelectorAll('#tiles dd')].map((one) => one.innerText)")
            assert tiles == ["0", "0", "0 %", "–", "–", "–"]
            await picture(page, "status-failed")
            assert page.console == []
            daemon.process.kill()
            await load  # requests that waited for the engine end with the daemon
            await page.until("document.getElementById('phase').textContent === 'No connection'")
            await page.until("document.getElementById('board').classList.contains('stale')")
            # What the browser itself says of the refused connections is no fault of the page.
            assert [line for line in page.console if "ERR_" not in line] == []

    run(look())


def test_keys_decide(start: Callable[..., Daemon]) -> None:
    """A wrong key and one without the scope admin are told apart; neither is kept, and the keyboard alone reaches all."""
    daemon = start("llama")

    async def look() -> None:
        async with open_page(f"{daemon.url}/status") as page:
            for key, words in (("no-such-key", "not known"), (INFER_KEY, "no scope admin"), ("schlüssel", "not known")):
                await page.until("document.activeElement.id === 'key'")
                await page.write(key)
                await page.press("Enter")
                await page.until(f"document.getElementById('login-error').textContent.includes({words!r})")
                assert await page.run("sessionStorage.length") == 0
            await log_in(page)
            reached = []
            for _ in range(24):
                await page.press("Tab")
                reached.append(
                    await page.run(
                        "document.activeElement.id || document.activeElement.className || document.activeElement.tagName"
                    )
                )
            assert {"language", "theme", "forget", "SUMMARY"} <= set(reached)
            await page.run("document.getElementById('forget').click()")
            await page.until("document.readyState === 'complete' && document.activeElement.id === 'key'")
            assert await page.run("sessionStorage.length") == 0

    run(look())


def test_the_shell_has_no_data_and_runs_no_foreign_script(start: Callable[..., Daemon]) -> None:
    """Without a key page and assets come and hold nothing of the instance; their policy allows this server only."""
    daemon = start("mistral")

    with urllib.request.urlopen(f"{daemon.url}/status", timeout=10) as answer:
        shell, policy = answer.read().decode(), answer.headers["Content-Security-Policy"]

    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"mistral|qwen2|https?://|<script(?![^>]*src=)|style=|onclick", shell)
    for name in re.findall(r'(?:src|href)="(status/[^"]+)"', shell):
        with urllib.request.urlopen(f"{daemon.url}/{name}", timeout=10) as answer:
            assert answer.status == 200
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{daemon.url}/status/events", timeout=10)


class _Recorded(BaseHTTPRequestHandler):
    """The page's own files, and one status report whose chips come from a recorded npu-smi."""

    status: bytes = b""
    over: threading.Event

    def log_message(self, *_args: object) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        is_stream = name == "events"
        data = b"event: status\ndata: %s\n\n" % self.status
        if not is_stream:
            name = "index.html" if name == "status" else name
            data = (PAGE_FILES / name).read_bytes()
        self.send_response(200)
        self.send_header(
            "Content-Type", "text/event-stream" if is_stream else "text/html" if name == "index.html" else ASSETS[name]
        )
        self.send_header("Content-Length", str(len(data) + is_stream))  # one byte more keeps the stream open
        self.end_headers()
        self.wfile.write(data)
        if is_stream:
            self.wfile.flush()
            self.over.wait(120)


def test_chips_are_shown_as_the_live_checks_saw_them(axe: str) -> None:
    """On a host of NPUs the ranks have health, power, temperature and memory of their chips, and when they were read."""
    chips = parse_info((RECORDED / "abn-health-warning-alarm-critical-24.1.rc3-910B3.txt").read_text()).chips
    board = StatsBoard("blue", "qwen2")
    board.take_checks(
        [
            replace(npu_sensors.judge(chips), check_id="npu-sensors"),
            replace(npu_health.judge(chips, {}), check_id="npu-health"),
        ]
    )
    assert board.checks is not None
    ranks = [{"rank": n, "stage": 0, "slice": n, "device": f"npu {n}", "state": "ready"} for n in range(len(chips))]
    report = {
        "instance": "blue", "version": "0", "model": "qwen2", "address": "127.0.0.1:1", "phase": "serving", "held": False,
        "text": "", "degraded": None, "uptime_s": 1.0, "unix_s": 1.8e9, "processes": [], "load": board.load(),
        "last_incident": None, "engine": {}, "ranks": ranks, "checks": board.checks, "doctor": {"verdict": "pass"},
        "neighbours": [],
    }  # fmt: skip
    over = threading.Event()
    handler = type("Handler", (_Recorded,), {"status": json.dumps(report).encode(), "over": over})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    async def look() -> None:
        async with open_page(f"http://127.0.0.1:{server.server_address[1]}/status") as page:
            await page.until("document.querySelectorAll('#ranks tbody tr').length > 0")
            rows = await page.run(
                "[...document.querySelectorAll('#ranks tbody tr')].map((row) => [...row.cells].map((cell) => cell.innerText))"
            )
            for chip, row in zip(chips, rows, strict=True):
                assert row[5:] == [
                    chip.health, f"{chip.power_w:g} W", f"{chip.temperature_c} °C",
                    f"{chip.hbm_used_mb} / {chip.hbm_total_mb} MB",
                ]  # fmt: skip
            read_at = await page.run(f"new Date({board.checks['unix_s']} * 1000).toLocaleString('en-GB')")
            assert read_at in await page.run("document.querySelector('#ranks p').innerText")
            assert await page.run("[...document.querySelectorAll('.plot .none')].every((one) => one.innerText !== '')")
            await page.size(*DESK)
            assert await page.run(
                "document.getElementById('ranks').scrollWidth <= document.getElementById('ranks').clientWidth"
            )
            assert await violations(page, axe) == []
            await picture(page, "status-chips")
            assert page.console == []

    run(look())
    over.set()
    server.shutdown()
    server.server_close()
