"""Listeners."""

from __future__ import annotations

import os
import socket

import pytest

from ascendd.errors import ListenFailed
from ascendd.supervisor.sockets import address_of, open_listener


def test_port_0_takes_a_free_one():
    """The address shows the port that was taken."""
    with open_listener("api", "127.0.0.1", 0, {}) as listener:
        assert address_of(listener) == f"127.0.0.1:{listener.getsockname()[1]}"
        assert listener.getsockname()[1] != 0
        assert not listener.get_inheritable()


def test_ipv6_addresses_are_bracketed():
    """An IPv6 listener is shown as clients write it."""
    try:
        listener = open_listener("api", "::1", 0, {})
    except ListenFailed:
        pytest.skip("this machine has no IPv6")

    with listener:
        assert address_of(listener).startswith("[::1]:")


def test_a_taken_port_names_address_and_holder():
    """The error has the address and the process that has the port."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        with pytest.raises(ListenFailed, match=rf"api cannot listen on 127.0.0.1:{port}: .*has it") as caught:
            open_listener("api", "127.0.0.1", port, {})

    assert f"(pid {os.getpid()})" in caught.value.message
    assert caught.value.exit_code == 71


def test_an_address_of_another_machine_is_explained():
    """An address that no interface has is not blamed on another process."""
    with pytest.raises(ListenFailed, match=r"192\.0\.2\.1:0: Cannot assign requested address"):
        open_listener("api", "192.0.2.1", 0, {})


def test_a_socket_from_systemd_is_taken_by_name():
    """The descriptor passed under that name is used as it is; host and port of the file are not."""
    with socket.create_server(("127.0.0.1", 0)) as passed:
        fd = os.dup(passed.fileno())

        with open_listener("api", "127.0.0.1", 1, {"api": fd}) as listener:
            assert listener.getsockname() == passed.getsockname()


def test_a_wrong_socket_from_systemd_is_refused():
    """A datagram socket under the API's name is a mistake of the socket unit."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as passed,
        pytest.raises(ListenFailed, match="not a listening stream socket"),
    ):
        open_listener("api", "127.0.0.1", 0, {"api": passed.fileno()})
