"""kill -9 of each process of a real daemon, as its clients see it."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request

import psutil
import pytest

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

ENDLESS = {"model": "qwen2", "prompt": [1, 2, 3], "max_tokens": 12000, "ignore_eos": True, "stream": True}


class Streaming(threading.Thread):
    """A client that reads one long stream to whatever end it has."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self.started_reading = threading.Event()
        self.lines: list[str] = []
        self.broken: str | None = None

    def run(self) -> None:
        request = urllib.request.Request(
            f"{self._url}/v1/completions", json.dumps(ENDLESS).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                for line in response:
                    if line.strip():
                        self.lines.append(line.decode().strip())
                        self.started_reading.set()
        except OSError as error:
            self.broken = str(error)
        except Exception as error:
            self.broken = repr(error)


def streaming(daemon) -> Streaming:
    client = Streaming(daemon.url)
    client.start()
    assert client.started_reading.wait(240), "no first token"
    return client


def refusal(daemon, path: str) -> urllib.error.HTTPError:
    """Ask again and again until the answer is an error, and return it."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{daemon.url}{path}", timeout=120).close()
        except urllib.error.HTTPError as error:
            error.close()
            return error
    raise AssertionError(f"{path} never refused")


@pytest.fixture(scope="module")
def daemon(start_daemon):
    return start_daemon("--max-num-seqs", "4")


def test_kill_9_of_the_engine_ends_streams_with_an_error_event(daemon, eventually) -> None:
    """Open streams get an error event and no [DONE]; /readyz says 503; a new request is held and answered by the next."""
    client = streaming(daemon)
    engine = daemon.children()["engine"]
    killed = time.monotonic()
    engine.kill()
    refused = refusal(daemon, "/readyz")
    client.join(240)
    held = urllib.request.Request(
        f"{daemon.url}/v1/completions",
        json.dumps({"model": "qwen2", "prompt": [1, 2, 3], "max_tokens": 2}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(held, timeout=120) as answer:
        held_status = answer.status
    eventually(lambda: daemon.status("/readyz") == 200, "ready again")
    took_s = time.monotonic() - killed
    print(f"ready again {took_s:.1f} s after kill -9 of the engine; the plain start took {daemon.ready_s:.1f} s")

    assert not client.is_alive()
    assert client.broken is None
    assert json.loads(client.lines[-1].removeprefix("data: "))["error"]["code"]
    assert "data: [DONE]" not in client.lines
    assert refused.code == 503
    assert int(refused.headers["Retry-After"]) >= 1
    assert held_status == 200
    assert daemon.children()["engine"].pid != engine.pid
    eventually(lambda: daemon.metrics()['ascendd_child_restarts_total{role="engine"}'] == 1, "the restart in /metrics")


def test_a_stopped_engine_is_not_ready_though_its_process_lives(daemon, eventually) -> None:
    """SIGSTOP: /readyz tells it within seconds, long before the heartbeat's deadline; it is 200 again when it goes on."""
    engine = daemon.children()["engine"]
    engine.suspend()
    try:
        took_s = eventually(lambda: daemon.status("/readyz") == 503, "503")
        alive = daemon.status("/livez")
    finally:
        engine.resume()
    print(f"/readyz told of a stopped engine after {took_s:.1f} s")

    assert alive == 200
    eventually(lambda: daemon.status("/readyz") == 200, "ready again")
    assert daemon.children()["engine"].pid == engine.pid


def test_kill_9_of_the_api_keeps_port_and_weights(daemon, eventually) -> None:
    """The listener outlives the process: a client that connects meanwhile waits in the backlog and is served."""
    children = daemon.children()
    children["api"].kill()
    took_s = eventually(lambda: daemon.status("/readyz") == 200, "ready again")
    print(f"ready again {took_s:.1f} s after kill -9 of the API")
    after = daemon.children()

    assert after["engine"].pid == children["engine"].pid
    assert after["api"].pid != children["api"].pid


def test_kill_9_of_the_metrics_process_does_not_touch_serving(daemon, eventually) -> None:
    """/metrics is back within seconds while a stream goes on."""
    client = streaming(daemon)
    daemon.children()["metrics"].kill()
    eventually(lambda: daemon.metrics()["ascendd_instance_ready"] == 1, "/metrics again")

    assert client.is_alive()
    assert client.broken is None


def test_kill_9_of_the_supervisor_leaves_no_process(start_daemon, eventually) -> None:
    """Every child sees the end of its control link, or the kernel's parent-death signal, and is gone."""
    daemon = start_daemon()
    children = [process for role, process in daemon.children().items() if role != "supervisor"]
    daemon.process.send_signal(signal.SIGKILL)
    daemon.process.wait(240)
    took_s = eventually(
        lambda: not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in children),
        "no child",
    )
    print(f"{len(children)} children gone {took_s:.2f} s after kill -9 of the supervisor")

    assert len(children) == 3


def test_the_idle_supervisor_is_small_and_asleep(start_daemon) -> None:
    """Resident memory under 60 MB and under 1 % of a core while nothing is asked."""
    supervisor = start_daemon().children()["supervisor"]
    share = 1.0
    for _ in range(12):  # what belongs to the start may take a while on a busy machine
        before, started = supervisor.cpu_times(), time.monotonic()
        time.sleep(10.0)  # measured over a time, so a time has to pass
        after, took_s = supervisor.cpu_times(), time.monotonic() - started
        share = min(share, (after.user + after.system - before.user - before.system) / took_s)
        if share < 0.01:
            break
    rss_mb = supervisor.memory_info().rss / 1e6
    print(f"supervisor: {rss_mb:.1f} MB resident, {100 * share:.2f} % of a core idle")

    assert rss_mb < 60
    assert share < 0.01


def test_a_second_daemon_on_the_same_port_says_who_has_it(daemon, qwen2_folder) -> None:
    """Exit status 71 and one clear message."""
    import sys

    command = [
        sys.executable,
        "-m",
        "ascendd",
        "serve",
        str(qwen2_folder),
        "--port",
        str(daemon.port),
        "--metrics-port",
        "0",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 71
    assert f"127.0.0.1:{daemon.port}" in done.stderr
    assert "ASD-H02" in done.stderr
