"""Facts about running processes, read from this one."""

from __future__ import annotations

import os
import socket

from ascendd.host.proc import descendants, own_usage, port_holder, usage

NO_PID = 2**22 + 1


def test_usage_of_this_process_is_plausible():
    """Memory is more than a bare interpreter's megabyte, CPU time does not fall."""
    first, second = own_usage(os.getpid()), usage(os.getpid())

    assert first is not None
    assert second is not None
    assert first.rss_bytes > 1 << 20
    assert second.cpu_s >= first.cpu_s
    assert first.num_processes == 1


def test_a_process_that_is_gone_has_no_facts():
    """No exception for a pid that ended, since children may end at any moment."""
    assert (usage(NO_PID), own_usage(NO_PID), descendants(NO_PID)) == (None, None, [])


def test_the_holder_of_a_port_is_named():
    """A listening socket of this process is found with its pid; a free port has no holder."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        assert f"(pid {os.getpid()})" in (port_holder(port) or "")
    assert port_holder(port) is None
