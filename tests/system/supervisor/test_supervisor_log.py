"""log.file: one writer process, one pipe, no line lost or torn."""

from __future__ import annotations

import json
import signal

import pytest

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


def lines_of(daemon, pattern="*"):
    """Every line of the log files."""
    return [line for path in sorted(daemon.folder.glob(f"logs/{pattern}")) for line in path.read_text().splitlines()]


@pytest.fixture
def logging(start, tmp_path):
    """An instance that logs to a file; its events are read from there."""

    def begin(**more):
        extra = f"log: {{file: {tmp_path}/daemon0/logs/a.log, level: debug{more.pop('log', '')}}}"
        daemon = start(extra=extra, **more)
        daemon.log_text = lambda: "\n".join(lines_of(daemon, "a.log*"))
        return daemon

    return begin


def test_everything_goes_to_the_file(logging):
    """Supervisor and children write to log.file and nothing of it to standard error; the last words are there, too."""
    daemon = logging().wait_ready()

    daemon.process.send_signal(signal.SIGTERM)

    assert daemon.wait_exit() == 0
    assert daemon.log_path.read_text().count("child_started") == 0
    assert len(daemon.events("supervisor.serving")) == 1
    assert daemon.events("supervisor.stopping")


def test_a_killed_log_writer_loses_nothing(logging, eventually):
    """B96: what is logged while the writer is down waits in the pipe; every line is whole JSON, in order, none missing."""
    daemon = logging().wait_ready()

    old = daemon.kill("logwriter")
    metrics = daemon.kill("metrics")
    daemon.wait_restarted("logwriter", old)
    daemon.wait_restarted("metrics", metrics)
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.wait_exit() == 0

    records = [json.loads(line) for line in lines_of(daemon)]
    ended = [record["child"] for record in records if record["event"] == "supervisor.child_ended"]
    assert sorted(ended) == ["logwriter", "metrics"]


def test_sighup_opens_the_file_anew(logging, eventually):
    """B97: after logrotate moved the file, SIGHUP makes a new one of the same name."""
    daemon = logging().wait_ready()
    path = daemon.folder / "logs" / "a.log"

    path.rename(daemon.folder / "logs" / "moved")
    daemon.process.send_signal(signal.SIGHUP)

    def new_file_used():
        assert daemon.process.poll() is None
        daemon.process.send_signal(signal.SIGHUP)
        return path.exists()

    eventually(new_file_used, detail=lambda: "\n".join(lines_of(daemon)))
    assert daemon.process.poll() is None


def test_a_log_file_that_cannot_be_written_ends_the_start(start, tmp_path):
    """Exit status 71 on standard error, since there is no other place to say it."""
    daemon = start(extra=f"log: {{file: {tmp_path}}}")

    assert daemon.wait_exit() == 71
    assert "ASD-H03" in daemon.log_text()
