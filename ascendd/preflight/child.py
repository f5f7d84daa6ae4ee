"""
The process that the checks of one round are forked from: what every check imports is imported once.

Run as a program by preflight.fork_server: `child.py CONTROL_FD SYS_PATH_AS_JSON`. Each message on the control socket is
the name of a check's module with two descriptors: a stream socket and a file for what the check prints, since vendor
libraries print where they like. On the stream come the request (JSON, to the end of the peer's half), and back, a line
each: {"pid"} of the check, its result, and {"status"} of its end. The end of the control socket ends every check.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from types import ModuleType
from typing import Any, Dict, List

_NAME_BYTES = 4096


def main() -> int:
    """Fork a check for each message until the control socket ends."""
    control = socket.socket(fileno=int(sys.argv[1]))
    sys.path[:] = json.loads(sys.argv[2])
    importlib.import_module("ascendd.preflight.context")
    wake, wake_end = os.pipe()
    os.set_blocking(wake_end, False)
    signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    replies: Dict[int, socket.socket] = {}
    gc.freeze()
    watched: List[Any] = [control, wake]
    while True:
        ready, _, _ = select.select(watched, [], [])
        if wake in ready:
            os.read(wake, 512)
            _reap(replies)
        if control not in ready:
            continue
        name, descriptors, _, _ = socket.recv_fds(control, _NAME_BYTES, 2, socket.MSG_CMSG_CLOEXEC)
        if not name:
            for pid in replies:
                _kill_group(pid)
            return 0
        reply = socket.socket(fileno=descriptors[0])
        if name.rpartition(b".")[0].endswith(b"checks"):
            with contextlib.suppress(Exception):  # it is told by the check, which imports it again
                _load(name.decode())
        pid = os.fork()
        if pid == 0:
            _run_check(reply, descriptors[1])
        os.close(descriptors[1])
        replies[pid] = reply


def _reap(replies: Dict[int, socket.socket]) -> None:
    """Tell how each check that has ended did so; whatever it left behind in its group goes with it."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None:
            return
        _kill_group(ended.si_pid)  # before its number is given back
        _, status = os.waitpid(ended.si_pid, 0)
        with replies.pop(ended.si_pid) as reply, contextlib.suppress(OSError):
            _say(reply, {"status": os.waitstatus_to_exitcode(status)})


def _run_check(reply: socket.socket, output: int) -> None:
    """Be the check; never returns."""
    status = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(output, 1)
        os.dup2(output, 2)
        _say(reply, {"pid": os.getpid()})
        parts = []
        while part := reply.recv(1 << 16):
            parts.append(part)
        _say(reply, _result(json.loads(b"".join(parts))))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _result(request: Dict[str, Any]) -> Dict[str, Any]:
    """Run the check that the request names; return its result as plain data."""
    from ascendd.errors import AscenddError
    from ascendd.preflight.check import CheckResult, Remedy, Verdict
    from ascendd.preflight.context import CheckContext, CheckRequest

    check = getattr(_load(request["module"]), request["name"])()
    started = time.monotonic()
    try:
        result = check.run(CheckContext(CheckRequest(**request["context"])))
    except AscenddError as error:
        facts = {key: value for key, value in error.facts.items() if isinstance(value, (str, int, float))}
        remedy = Remedy(error.code, error.remedy)
        result = CheckResult(Verdict.ERROR, f"could not check: {error.message}", facts, remedy)
    return {**result.to_json(), "id": check.id, "duration_s": round(time.monotonic() - started, 3)}


def _say(reply: socket.socket, message: Dict[str, Any]) -> None:
    # A line begins and ends with its newline: the one before may have been cut off by a death.
    reply.sendall(b"\n" + json.dumps(message).encode() + b"\n")


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _load(name: str) -> ModuleType:
    """Import the module `name` without the other checks, which its package would."""
    package = name.rpartition(".")[0]
    spec = importlib.util.find_spec(package) if package.rpartition(".")[2] == "checks" else None
    if spec is not None and package not in sys.modules:
        sys.modules[package] = importlib.util.module_from_spec(spec)  # its path, without what it would run
    return importlib.import_module(name)


if __name__ == "__main__":
    sys.exit(main())
