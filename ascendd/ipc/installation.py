"""InstallationBroken out of what an import raises: a module, a shared library or a file of Python that is not whole."""

from __future__ import annotations

import contextlib
import re
import socket
import sys
import time
import traceback
from collections.abc import Sequence

from ascendd.errors import ExitCode, InstallationBroken

# What the dynamic loader says (glibc), in an ImportError of an extension or in an OSError of ctypes.
_LIBRARY = re.compile(r"(?P<name>[\w.+-]+\.so[\w.]*): (?:cannot open shared object file|undefined symbol|invalid ELF)")
_VENDOR = ("libascend", "libhccl", "libacl", "libge_", "libruntime", "libtorch_npu", "libopapi")
_WORKER = "_worker"


def installation_fault(error: BaseException) -> InstallationBroken | None:
    """Return what `error` says of the installation; None where it has another reason than a part that does not load."""
    broken = _broken_part(error)
    if broken is not None:
        broken.__cause__ = error
    return broken


def _broken_part(error: BaseException) -> InstallationBroken | None:
    if isinstance(error, (ImportError, OSError)) and (found := _LIBRARY.search(str(error))):
        name = found["name"]
        remedy = f"Find the package of {name} with `ldconfig -p`, and install it or the release again."
        if name.startswith(_VENDOR):
            remedy = f"{name} is CANN's: put its folder into LD_LIBRARY_PATH in /etc/ascendd/cann.env, like set_env.sh."
        return InstallationBroken(f"the shared library {name} cannot be loaded: {error}", remedy=remedy, library=name)
    if isinstance(error, ModuleNotFoundError):
        name = error.name or str(error)
        package = name.partition(".")[0]
        return InstallationBroken(
            f"the Python module {name} is not installed in {sys.prefix}",
            remedy=f"Install the release again, or {package} into that environment: {sys.executable} -m pip install "
            f"{package}.",
            module=name,
        )
    if isinstance(error, ImportError):
        name = error.name or "a module"
        return InstallationBroken(
            f"the Python module {name} cannot be imported: {error}",
            remedy="Two releases are mixed or a package has the wrong version; install the release again.",
            module=name,
        )
    if isinstance(error, SyntaxError) and error.filename and error.filename.endswith(".py"):
        where = f"{error.filename}, line {error.lineno}"
        return InstallationBroken(
            f"{where} is no Python that {sys.version.split()[0]} can read: {error.msg}",
            remedy="The file was changed or written in part; install the release again.",
            file=error.filename,
        )
    return None


def tell_import_failure(role: str, argv: Sequence[str], error: BaseException) -> int:
    """Tell whoever started this process that its very program cannot be imported; return the exit status."""
    traceback.print_exception(error)
    broken = installation_fault(error)
    with contextlib.suppress(Exception):  # what tells it may be what is broken; the exit status is told anyhow
        _send(role, argv, broken or error)
    return int(ExitCode.ENGINE if broken is None else broken.exit_code)


def _send(role: str, argv: Sequence[str], error: BaseException) -> None:
    from ascendd.ipc.channel import BlockingChannel
    from ascendd.ipc.messages import ChildFault, ControlMessage, Fault
    from ascendd.ipc.rank_messages import RankFault, ToRank

    with socket.socket(fileno=int(argv[argv.index("--control-fd") + 1])) as link:
        fault = Fault.from_error(error)
        if role == _WORKER:
            BlockingChannel(link, ToRank).send(RankFault(fault, time.monotonic()), timeout_s=5.0)
        else:
            BlockingChannel(link, ControlMessage).send(ChildFault(fault), timeout_s=5.0)
