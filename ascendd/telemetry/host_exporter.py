"""The process of `ascendd exporter`: shows the chips of this host at /metrics, whether or not an instance serves."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from typing import Any

from ascendd.errors import ListenFailed
from ascendd.host.systemd import Notifier
from ascendd.telemetry import log
from ascendd.telemetry.chip_reader import ChipReader
from ascendd.telemetry.exporter import MetricsServer
from ascendd.telemetry.exposition import Exposition
from ascendd.telemetry.scrape_limit import ScrapeLimit

_log = log.get_logger("exporter")


def run_exporter(reader: ChipReader, host: str, port: int, interval_s: float, max_scrapes_per_s: float) -> int:
    """
    Serve until SIGTERM or SIGINT, with a reading every `interval_s` seconds. Raises ListenFailed.

    A scrape gets the last reading and never starts one; while npu-smi hangs, ascendd_snapshot_age_seconds grows.
    """
    listener = _bind(host, port)
    page = Exposition("")
    server = MetricsServer(listener, page, ScrapeLimit(max_scrapes_per_s))
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    notifier = Notifier()
    reading = threading.Thread(target=_read, args=(reader, page, interval_s, stop), daemon=True, name="reader")
    reading.start()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 1.0}, daemon=True, name="http").start()
    _log.info("exporter.listening", host=host, port=server.server_port, interval_s=interval_s)
    notifier.ready()
    # A thread that fell silent ends the process; the unit starts it again.
    while not stop.wait(1.0) and reading.is_alive():
        notifier.watchdog()
    notifier.stopping()
    with contextlib.suppress(OSError):
        server.shutdown()
        listener.close()
    return 0 if stop.is_set() else 70


def page_once(reader: ChipReader) -> str:
    """Return the page of one reading, for people."""
    page = Exposition("")
    page.replace(reader.read())
    return page.render().decode()


def _read(reader: ChipReader, page: Exposition, interval_s: float, stop: threading.Event) -> None:
    while not stop.is_set():
        started_s = time.monotonic()
        samples: list[Any] = reader.read()
        page.replace(samples)
        stop.wait(max(0.1, interval_s - (time.monotonic() - started_s)))


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise ListenFailed(f"{host}:{port} cannot be listened on: {error.strerror}", host=host, port=port) from error
