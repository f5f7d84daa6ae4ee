"""Shape of log lines."""

from __future__ import annotations

import io
import json
import logging
import os
import select
import threading

import pytest
import structlog

from ascendd.config.schema import LogSection
from ascendd.telemetry import log


@pytest.fixture(autouse=True)
def _restore_logging():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def json_lines(emit, **options):
    """Run `emit` with logs as JSON and return its lines."""
    stream = io.StringIO()
    log.configure(LogSection(**options), instance="qwen2", role="api", stream=stream)
    emit()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_json_with_event_and_context():
    """Where nobody reads along, a line is one JSON object with time, level, event, instance and role."""
    (line,) = json_lines(lambda: log.get_logger("api").info("api.started", port=8000))

    assert list(line)[:3] == ["timestamp", "level", "event"]
    assert (line["event"], line["level"], line["port"]) == ("api.started", "info", 8000)
    assert (line["instance"], line["role"]) == ("qwen2", "api")


def test_console_format_is_text():
    """format: console writes for people even where standard error is no terminal, without colours."""
    stream = io.StringIO()
    log.configure(LogSection(format="console"), instance="qwen2", role="api", stream=stream)

    log.get_logger("api").info("api.started", port=8000)

    assert "api.started" in stream.getvalue()
    assert "port=8000" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_standard_library_lines_have_the_same_shape():
    """A library's logger writes through the same handler, arguments filled in."""
    (line,) = json_lines(lambda: logging.getLogger("lib").warning("took %d s", 3))

    assert (line["event"], line["level"], line["role"]) == ("took 3 s", "warning", "api")


def test_the_level_cuts_off():
    """Lines below log.level are not written, whoever writes them."""

    def emit():
        log.get_logger("api").info("api.quiet")
        logging.getLogger("lib").info("quiet")
        log.get_logger("api").warning("api.loud")

    assert [line["event"] for line in json_lines(emit, level="warning")] == ["api.loud"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("api_key", "k-123456"),
        ("Authorization", "Bearer k-123456"),
        ("header", "Authorization: Bearer k-123456"),
        ("note", "key is sk-k-123456"),
    ],
)
def test_secrets_never_get_through(key, value):
    """Values of keys that name a secret, and bearer tokens inside text, are hidden."""
    (line,) = json_lines(lambda: log.get_logger("api").info("api.request", **{key: value}))

    assert "k-123456" not in json.dumps(line)
    assert log.HIDDEN in line[key]


def test_counts_of_tokens_are_no_secret():
    """Keys such as prompt_tokens stay as they are."""
    (line,) = json_lines(lambda: log.get_logger("api").info("api.request", prompt_tokens=3))

    assert line["prompt_tokens"] == 3


def test_an_exception_is_one_line_of_json():
    """A traceback stays inside its line, so that a line is always a whole record."""

    def emit():
        try:
            raise ValueError("broken")
        except ValueError:
            log.get_logger("api").exception("api.failed")

    (line,) = json_lines(emit)

    assert "ValueError: broken" in line["exception"]


def test_context_is_on_lines_of_other_threads():
    """The instance and the role are on the lines of every thread; a bound request only on those of its own."""

    def emit():
        log.bind_context(request_id="r1")
        thread = threading.Thread(target=lambda: log.get_logger("api").info("api.thread"))
        thread.start()
        thread.join()
        log.get_logger("api").info("api.here")

    other, here = json_lines(emit)

    assert (other["role"], other.get("request_id"), here["request_id"]) == ("api", None, "r1")


def test_a_line_into_a_pipe_is_never_longer_than_an_atomic_write():
    """Into the shared pipe goes valid JSON of at most PIPE_BUF bytes, beginning and end of long texts kept."""
    reader, writer = os.pipe()
    with open(writer, "w", encoding="utf-8") as stream, open(reader, encoding="utf-8") as lines:
        log.configure(LogSection(), instance="qwen2", role="api", stream=stream)

        log.get_logger("api").info("api.long", text="a" * 9000 + "é" * 9000, other="b" * 5000, n=1)
        stream.flush()
        line = lines.readline()

    assert len(line.encode()) <= select.PIPE_BUF
    record = json.loads(line)
    assert (record["event"], record["n"], record["text"][0], record["text"][-1]) == ("api.long", 1, "a", "é")


def test_the_instance_that_the_supervisor_gave_wins(monkeypatch):
    """A child logs under the name of the instance, whatever name its model has."""
    monkeypatch.setenv(log.INSTANCE_VARIABLE, "blue")

    (line,) = json_lines(lambda: log.get_logger("api").info("api.started"))

    assert line["instance"] == "blue"


def test_the_journal_gets_a_priority_before_each_line(monkeypatch, tmp_path):
    """Where standard error is the journal's stream, each line starts with its syslog priority in angle brackets."""
    with (tmp_path / "journal").open("w+") as stream:
        status = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
        log.configure(LogSection(format="console"), instance="qwen2", role="api", stream=stream)

        log.get_logger("api").error("api.failed", text="a\nb")
        log.get_logger("api").warning("api.odd")
        stream.seek(0)
        lines = stream.read().splitlines()

    assert [line[:3] for line in lines if "api.failed" in line or "api.odd" in line] == ["<3>", "<4>"]
    assert all(line.startswith(("<3>", "<4>")) for line in lines)


def test_no_priority_where_the_stream_is_another(monkeypatch, tmp_path):
    """JOURNAL_STREAM of a unit whose output was redirected changes nothing."""
    monkeypatch.setenv("JOURNAL_STREAM", "1:1")
    with (tmp_path / "file").open("w+") as stream:
        log.configure(LogSection(), instance="qwen2", role="api", stream=stream)

        log.get_logger("api").error("api.failed")
        stream.seek(0)

        assert stream.read().startswith("{")
