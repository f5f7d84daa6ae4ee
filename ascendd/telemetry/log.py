"""
Logs of every process: event name plus key-values through structlog; standard library logging uses the same handler.

Form: JSON lines, or coloured text where standard error is a terminal. Under systemd each line carries the `<N>` prefix
that the journal turns into a priority. Values of keys that name a secret, and bearer tokens, never get through.
"""

from __future__ import annotations

import json
import logging
import os
import re
import select
import stat
import sys
from collections.abc import MutableMapping
from typing import Any, Protocol

import structlog

from ascendd.config.schema import LogSection

_SECRET_KEYS = frozenset({"api_key", "api_keys", "apikey", "authorization", "password", "secret", "bearer"})
_SECRET_TEXT = re.compile(r"(?i)\b(bearer\s+|sk-)[\w.~+/=-]{4,}")
HIDDEN = "[hidden]"
_CUT = " [...] "
# Set by the supervisor for its children: a label for their lines, no switch.
INSTANCE_VARIABLE = "ASCENDD_INSTANCE"

# Priorities of syslog(3), as sd-daemon(3) writes them before a line.
_PRIORITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}

# What every line of this process has for a time (see set_episode).
_process_fields: dict[str, str] = {}

EventDict = MutableMapping[str, Any]


class LogStream(Protocol):
    """What lines are written to."""

    def write(self, text: str, /) -> Any:
        """Write `text`."""

    def flush(self) -> None:
        """Pass on what was written."""

    def isatty(self) -> bool:
        """Whether people read it as it is written."""

    def fileno(self) -> int:
        """Return the descriptor."""


def configure(
    section: LogSection,
    *,
    role: str,
    instance: str | None = None,
    rank: int | None = None,
    stream: LogStream | None = None,
) -> None:
    """
    Set up logging of this process once; a later call replaces the earlier one.

    `stream` is standard error unless a test gives another. `instance`, `role` and `rank` are on every line of every
    thread; in a child of the supervisor the instance's name is the one that it was given.
    """
    out: LogStream = sys.stderr if stream is None else stream
    name = os.environ.get(INSTANCE_VARIABLE) or instance or ""
    fields: dict[str, Any] = {"instance": name, "role": role}
    if rank is not None:
        fields["rank"] = rank

    def add_fields(_logger: Any, _method: str, event: EventDict) -> EventDict:
        for key, value in fields.items():
            event.setdefault(key, value)
        for key, value in _process_fields.items():
            event.setdefault(key, value)
        return event

    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        add_fields,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        hide_secrets,
    ]
    is_terminal = out.isatty()
    as_console = section.format == "console" or (section.format == "auto" and is_terminal)
    last: list[Any] = (
        [structlog.dev.ConsoleRenderer(colors=is_terminal, exception_formatter=structlog.dev.plain_traceback)]
        if as_console
        else [
            structlog.processors.format_exc_info,
            hide_secrets,
            _order,
            _JsonLine(select.PIPE_BUF - 1 if _is_pipe(out) else None),
        ]
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(JournalFormatter(formatter) if goes_to_journal(out) else formatter)
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(section.level.upper())
    logging.captureWarnings(capture=True)
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger of an area, such as `supervisor`; usable before `configure`, too."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


def bind_context(**values: Any) -> None:
    """Add `values` (request_id=...) to every later line of this task or thread."""
    structlog.contextvars.bind_contextvars(**values)


def set_episode(episode: str) -> None:
    """Have every later line of this process carry the id of a failure that is being recovered from; empty for none."""
    _process_fields.clear()
    if episode:
        _process_fields["episode"] = episode


def set_level(level: str) -> None:
    """Change the level of this process: debug, info, warning or error."""
    logging.getLogger().setLevel(level.upper())


def goes_to_journal(stream: LogStream) -> bool:
    """Whether `stream` is the one that systemd connected to the journal (JOURNAL_STREAM names its device and inode)."""
    wanted = os.environ.get("JOURNAL_STREAM", "")
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return wanted == f"{status.st_dev}:{status.st_ino}"


def hide_secrets(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Replace values of keys that name a secret, and anything that looks like a bearer token, also inside the text."""
    for key, value in event.items():
        if key.lower() in _SECRET_KEYS:
            event[key] = HIDDEN
        elif isinstance(value, str):
            event[key] = _SECRET_TEXT.sub(lambda match: match[1] + HIDDEN, value)
    return event


def _order(_logger: Any, _method: str, event: EventDict) -> EventDict:
    first = {key: event[key] for key in ("timestamp", "level", "event") if key in event}
    return {**first, **event}


class _JsonLine:
    """
    Renders JSON; at most `max_bytes` of it by cutting the middle out of the longest texts.

    Several processes share the pipe to the log writer, and only writes of up to PIPE_BUF are never mixed there.
    """

    def __init__(self, max_bytes: int | None) -> None:
        self._max_bytes = max_bytes

    def __call__(self, _logger: Any, _method: str, event: EventDict) -> str:
        while True:
            line = json.dumps(event, default=str, ensure_ascii=False)
            excess = 0 if self._max_bytes is None else len(line.encode("utf-8", "replace")) - self._max_bytes
            if excess <= 0:
                return line
            key = max(event, key=lambda name: len(str(event[name])))
            text = str(event[key])
            # By half at most: cutting one text to nothing would be worse than cutting two.
            keep = max(len(text) - excess - len(_CUT), len(text) // 2) // 2
            if len(text) <= 4 * len(_CUT):
                return json.dumps({"event": "log.line_too_long", "num_keys": len(event)})
            event[key] = text[:keep] + _CUT + text[len(text) - keep :]


def _is_pipe(stream: LogStream) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False


class JournalFormatter(logging.Formatter):
    """Puts the `<N>` priority before every line of what `inner` writes."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of `record` with its priority before each line."""
        prefix = f"<{_PRIORITY.get(record.levelno, 6)}>"
        return "\n".join(prefix + line for line in self._inner.format(record).splitlines())
