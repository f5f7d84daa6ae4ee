"""What every child process does first: die with its parent, find its descriptors, say Hello, take its configuration."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from ascendd.config.schema import InstanceConfig
from ascendd.errors import AscenddError, PeerClosed, ProtocolMismatch
from ascendd.ipc.channel import BlockingChannel
from ascendd.ipc.installation import installation_fault
from ascendd.ipc.messages import ChildFault, Configure, ControlMessage, Fault, Hello, Role
from ascendd.ipc.stack_pipe import answer_stack_requests
from ascendd.telemetry import log

_PR_SET_PDEATHSIG = 1
_CONFIGURE_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class ChildArguments:
    """Descriptors given by the supervisor; nothing else ever travels on a command line."""

    control_fd: int
    listen_fd: int | None
    data_fd: int | None
    stack_fd: int | None = None

    def control_socket(self) -> socket.socket:
        """Return this end of the control link."""
        os.set_inheritable(self.control_fd, False)
        return socket.socket(fileno=self.control_fd)


def parse_arguments(role: Role, argv: Sequence[str]) -> ChildArguments:
    """Parse the arguments of a private role."""
    parser = argparse.ArgumentParser(
        prog=f"ascendd _{role.value}", description="Started by the supervisor, not by hand."
    )
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--listen-fd", type=int)
    parser.add_argument("--data-fd", type=int)
    parser.add_argument("--stack-fd", type=int)
    args = parser.parse_args(argv)
    return ChildArguments(args.control_fd, args.listen_fd, args.data_fd, args.stack_fd)


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send `number` when the thread that started this process ends; exits if that already happened."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:  # died before prctl; a death even earlier shows as EOF on the control link
        os._exit(0)


def receive_config(channel: BlockingChannel[ControlMessage], role: Role) -> tuple[InstanceConfig, int]:
    """Say Hello and return the configuration and the episode it belongs to. Raises PeerClosed or ProtocolMismatch."""
    channel.send(Hello(role, os.getpid()))
    message = channel.recv(_CONFIGURE_TIMEOUT_S)
    if message is None:
        raise PeerClosed(f"no configuration within {_CONFIGURE_TIMEOUT_S:g} s")
    if not isinstance(message, Configure):
        raise ProtocolMismatch(f"expected Configure first, got {type(message).__name__}")
    log.set_episode(message.after)
    return msgspec.json.decode(message.config_json, type=InstanceConfig), message.episode


def run_role(
    role: Role, argv: Sequence[str], body: Callable[[ChildArguments, BlockingChannel[ControlMessage]], int]
) -> int:
    """
    Run `body` as the process of `role` and return its exit status.

    An AscenddError is reported to the supervisor as ChildFault and becomes its exit code, and so is what cannot be
    imported; the end of the control link means that the supervisor is gone and ends the process with 0.
    """
    die_with_parent()
    arguments = parse_arguments(role, argv)
    # The supervisor decides when children end; a Ctrl-C in the terminal must not hit them first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if arguments.stack_fd is not None:
        answer_stack_requests(arguments.stack_fd)
    channel: BlockingChannel[ControlMessage] = BlockingChannel(arguments.control_socket(), ControlMessage)
    try:
        return body(arguments, channel)
    except PeerClosed:
        return 0
    except Exception as raised:  # the last frame before the exit status
        error = raised if isinstance(raised, AscenddError) else installation_fault(raised) or raised
        fault = Fault.from_error(error)
        sys.stderr.write(fault.traceback_text)
        with contextlib.suppress(PeerClosed):
            channel.send(ChildFault(fault), timeout_s=5.0)
        return int(error.exit_code) if isinstance(error, AscenddError) else int(AscenddError.exit_code)
