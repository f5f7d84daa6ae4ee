"""The throw-away machine as its root sees it: units, processes, and an HTTP client of the instance's API."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

PORT, METRICS_PORT = 8000, 9475
UNIT = "ascendd@qwen2.service"
SOCKET = "ascendd@qwen2.socket"
REPORT = "ascendd-report@missing.service"
MISSING_UNIT = "ascendd@missing.service"
# A busy machine takes its time; what fails waits for it, what works does not.
DEADLINE_S = 240.0
KEY = "key-of-the-lab-0123456789abcdef"


def run(*argv: str) -> str:
    """Run a command and return what it prints, whatever its status."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def show(unit: str, *names: str) -> dict[str, str]:
    """Return properties of a unit."""
    text = run("systemctl", "show", unit, *(f"-p{name}" for name in names))
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def state(unit: str = UNIT) -> str:
    """Return the ActiveState."""
    return show(unit, "ActiveState")["ActiveState"]


def wait(condition: Any, what: str, deadline_s: float = DEADLINE_S) -> float:
    """Wait until `condition` is true and return how long that took."""
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > deadline_s:
            raise TimeoutError(f"{what} did not happen within {deadline_s} s\n{run('journalctl', '-n', '60')}")
        time.sleep(0.05)
    return time.monotonic() - started


class Answer:
    """Status, headers and body of one HTTP exchange; status 0 where nobody listens."""

    def __init__(self, status: int, head: str = "", body: str = "") -> None:
        self.status, self.head, self.body = status, head, body

    @property
    def retry_after(self) -> int | None:
        """Seconds of Retry-After."""
        for line in self.head.splitlines():
            if line.lower().startswith("retry-after:"):
                return int(line.partition(":")[2])
        return None


def post(
    max_tokens: int = 1, *, stream: bool = False, on_data: Any = None, key: str = "", prompt: str = "hello"
) -> Answer:
    """Ask for a completion over a plain socket, so that a stream is seen as it comes."""
    body = json.dumps(
        {"model": "qwen2", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": stream}
    )
    bearer = f"Authorization: Bearer {key}\r\n" if key else ""
    request = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{bearer}Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    )
    data = b""
    try:
        with socket.create_connection(("127.0.0.1", PORT), DEADLINE_S) as sock:
            sock.sendall(request.encode())
            while chunk := sock.recv(65536):
                data += chunk
                if on_data is not None:
                    on_data(data)
    except ConnectionRefusedError:
        return Answer(0)
    except OSError as error:
        return Answer(-1, str(error), data.decode(errors="replace"))
    head, _, rest = data.decode(errors="replace").partition("\r\n\r\n")
    return Answer(int(head.split()[1]) if head else -1, head, rest)


class Stream(threading.Thread):
    """A client that reads a long stream in the background."""

    def __init__(self, max_tokens: int) -> None:
        super().__init__(daemon=True)
        self._max_tokens = max_tokens
        self.flowing = threading.Event()
        self.answer = Answer(-1)

    def run(self) -> None:
        """Read to the end."""
        self.answer = post(self._max_tokens, stream=True, on_data=self._on_data)

    def _on_data(self, data: bytes) -> None:
        if data.count(b"data: ") >= 5:
            self.flowing.set()


def children() -> dict[str, int]:
    """Return the pid of each process of the unit by role; the supervisor as `supervisor`."""
    found = {"supervisor": int(show(UNIT, "MainPID")["MainPID"])}
    group = show(UNIT, "ControlGroup")["ControlGroup"]
    for pid in run("systemctl", "show", UNIT, "-pControlGroup") and _pids_of(group):
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        for arg in argv:
            if arg.startswith(b"_"):
                found[arg.decode()[1:]] = pid
    return found


def _pids_of(group: str) -> list[int]:
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if group and group in (entry / "cgroup").read_text():
                    pids.append(int(entry.name))
            except OSError:
                continue
    return pids


def exists(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
