"""The daemon's side of systemd."""

from __future__ import annotations

import os
import socket

import pytest

from ascendd.host.systemd import Notifier, credential, listen_fds, watchdog_interval_s


@pytest.fixture
def manager(monkeypatch, tmp_path):
    """Be the service manager: return the states that were sent."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))

        def states():
            out = []
            while True:
                try:
                    out.append(sock.recv(4096).decode())
                except BlockingIOError:
                    return out

        yield states


def test_states_are_sent_as_systemd_reads_them(manager):
    """Each call is one datagram; a status is one line, and the same one is not sent twice."""
    notifier = Notifier()

    notifier.status("loading\n42 %")
    notifier.status("loading\n42 %")
    notifier.extend_timeout(1.5)
    notifier.ready()
    notifier.watchdog()
    notifier.stopping()
    notifier.close()

    assert manager() == ["STATUS=loading 42 %", "EXTEND_TIMEOUT_USEC=1500000", "READY=1", "WATCHDOG=1", "STOPPING=1"]


def test_a_text_that_counts_on_is_sent_once_a_second(manager):
    """Of a hundred percentages in one second two are seen, the last of them in any case; another state comes at once."""
    now_s = 100.0
    notifier = Notifier(lambda: now_s)

    for percent in range(100):
        notifier.progress(f"loading {percent} %")
        now_s += 0.0099
    early = manager()
    now_s += 1.0
    notifier.settle()
    late = manager()
    notifier.progress("loading 100 %")
    notifier.status("self-test")
    now_s += 5.0
    notifier.settle()
    notifier.close()

    assert (early, late) == (["STATUS=loading 0 %"], ["STATUS=loading 99 %"])
    assert manager() == ["STATUS=self-test"]


def test_a_manager_that_does_not_read_stops_nobody(manager):
    """No call waits; readiness and the last status arrive once the manager reads again."""
    notifier = Notifier()

    for number in range(1000):
        notifier.status(f"loading {number}")
        notifier.watchdog()
    notifier.ready()
    manager()
    notifier.settle()
    notifier.close()

    assert manager() == ["STATUS=loading 999", "READY=1"]


def test_without_a_manager_nothing_happens(monkeypatch):
    """Started by hand, every state is a no-op."""
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)

    Notifier().ready()

    assert watchdog_interval_s({}) is None


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, {}),
        ({"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "api"}, {}),
        ({"LISTEN_PID": "me", "LISTEN_FDS": "2", "LISTEN_FDNAMES": "api:metrics"}, {"api": 3, "metrics": 4}),
        ({"LISTEN_PID": "me", "LISTEN_FDS": "2", "LISTEN_FDNAMES": "api:api"}, {"api": 3}),
        ({"LISTEN_PID": "me", "LISTEN_FDS": "1"}, {"unknown": 3}),
        ({"LISTEN_PID": "me", "LISTEN_FDS": "x"}, {}),
    ],
)
def test_listeners_are_found_by_name(environ, expected):
    """Descriptors meant for this process are mapped by their names, from 3 on."""
    environ = {key: str(os.getpid()) if value == "me" else value for key, value in environ.items()}

    assert listen_fds(environ) == expected


def test_a_credential_is_a_file_of_the_folder_that_systemd_names(tmp_path):
    """What the unit does not load, and a process that no unit started, have none."""
    (tmp_path / "api_keys").write_text("k")
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}

    assert credential("api_keys", environ) == tmp_path / "api_keys"
    assert credential("other", environ) is None
    assert credential("api_keys", {}) is None


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "x"}, None),
    ],
)
def test_the_watchdog_is_ours_alone(environ, expected):
    """The interval is in seconds; one meant for another process is none."""
    assert watchdog_interval_s(environ) == expected


def test_a_reload_is_told_with_its_time_and_only_by_an_active_unit(manager):
    """RELOADING=1 and the monotonic time are one datagram; before READY=1 nothing is said."""
    notifier = Notifier()

    notifier.reloading(is_ready=False)
    notifier.reloading(is_ready=True)
    notifier.ready()
    notifier.close()

    first, second = manager()
    head, _, usec = first.partition("\nMONOTONIC_USEC=")
    assert (head, second) == ("RELOADING=1", "READY=1")
    assert int(usec) > 0
