"""What every test gets: a clean environment, no network beyond this machine, and no silent skips in CI."""

from __future__ import annotations

import fcntl
import fnmatch
import functools
import ipaddress
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

if TYPE_CHECKING:
    from standin.machine import Machine

ROOT = Path(__file__).resolve().parent.parent
ALLOWED_SKIPS = Path(__file__).resolve().parent / "allowed_skips.txt"
# The service manager's and the proxy's variables would change what a daemon under test does.
UNWANTED_VARIABLES = (
    "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "CREDENTIALS_DIRECTORY",
    "http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY",
)  # fmt: skip

# The same examples in every run: a rare one must not stop a release; `make test-all` looks for new ones.
hypothesis.settings.register_profile("default", max_examples=50, deadline=None, derandomize=True)
hypothesis.settings.register_profile("thorough", max_examples=1000, deadline=None)
hypothesis.settings.load_profile("default")


# --- environment -----------------------------------------------------------------------------------------------------


def pytest_configure() -> None:
    """Clean the environment before any test module is imported; libraries read it on import."""
    for name in UNWANTED_VARIABLES:
        os.environ.pop(name, None)
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


@pytest.fixture(scope="session", autouse=True)
def _no_network() -> Iterator[None]:
    """Refuse connections to anything but this machine, so that no test leans on the network by accident."""
    real_connect, real_connect_ex = socket.socket.connect, socket.socket.connect_ex

    def refuse_remote(sock: socket.socket, address: object) -> None:
        if sock.family in (socket.AF_INET, socket.AF_INET6) and not _is_local(str(address[0])):  # type: ignore[index]
            pytest.fail(f"a test connects to {address}; tests talk to this machine only", pytrace=True)

    def connect(sock: socket.socket, address: object) -> None:
        refuse_remote(sock, address)
        real_connect(sock, address)  # type: ignore[arg-type]

    def connect_ex(sock: socket.socket, address: object) -> int:
        refuse_remote(sock, address)
        return real_connect_ex(sock, address)  # type: ignore[arg-type]

    socket.socket.connect, socket.socket.connect_ex = connect, connect_ex  # type: ignore[method-assign,assignment]
    yield
    socket.socket.connect, socket.socket.connect_ex = real_connect, real_connect_ex  # type: ignore[method-assign]


def _is_local(host: str) -> bool:
    if host in ("", "localhost"):
        return True
    try:
        address = ipaddress.ip_address(host.split("%", maxsplit=1)[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


# --- the demo model --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def demo_folder() -> Path:
    """The folder that `make model` fills; ASCENDD_DEMO_FOLDER names another."""
    folder = Path(os.environ.get("ASCENDD_DEMO_FOLDER", ROOT / ".demo"))
    if not list(folder.glob("*.gguf")):
        pytest.skip(f"{folder} holds no model; run `make model`")
    return folder


@pytest.fixture(scope="session")
def demo_model(demo_folder: Path) -> Path:
    """The demo model converted for one device, made on first use and kept beside its source."""
    target = demo_folder / "smollm2-135m"
    with (demo_folder / "convert.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        if not target.is_dir():
            (source,) = demo_folder.glob("*.gguf")
            command = [sys.executable, "-m", "ascendd", "convert", str(source), str(target)]
            subprocess.run(command, check=True, timeout=300)
    return target


# --- the stand-in NPU ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def standin_folder() -> Path:
    """The folder that `make standin` fills, its libraries up to date; ASCENDD_STANDIN_FOLDER names another."""
    if str(ROOT / "tests") not in sys.path:
        sys.path.insert(0, str(ROOT / "tests"))
    from standin.build import DEFAULT_FOLDER, build, missing

    folder = Path(os.environ.get("ASCENDD_STANDIN_FOLDER", DEFAULT_FOLDER))
    reason = missing(folder)
    if reason:
        pytest.skip(reason)
    return build(folder)


@pytest.fixture(scope="session")
def make_npu_machine(standin_folder: Path) -> Callable[..., Machine]:
    """Return tests/standin/machine.py's Machine, bound to the stand-in: call it with a folder and sizes."""
    from standin.machine import Machine

    return functools.partial(Machine, standin=standin_folder)


# --- skips in CI -----------------------------------------------------------------------------------------------------


class SkipRules:
    """The lines of allowed_skips.txt: `pattern # reason`."""

    def __init__(self, text: str, origin: str = "allowed_skips.txt") -> None:
        self.patterns: list[str] = []
        for number, line in enumerate(text.splitlines(), start=1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            pattern, _, reason = line.partition(" # ")
            if not reason.strip():
                raise pytest.UsageError(f"{origin} line {number}: `{line}` gives no reason; write `PATTERN # REASON`")
            self.patterns.append(pattern.strip())

    def allow(self, nodeid: str) -> bool:
        """Whether a line names the test `nodeid`; brackets of a parametrised id are literal."""
        return any(fnmatch.fnmatchcase(nodeid, pattern.replace("[", "[[]")) for pattern in self.patterns)


class SkipRecorder:
    """Collects every skip of a session and fails the session for those that no rule allows."""

    def __init__(self, rules: SkipRules) -> None:
        self._rules = rules
        self.unexpected: list[tuple[str, str]] = []

    def _record(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail") and not self._rules.allow(report.nodeid):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self.unexpected.append((report.nodeid, reason))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a skipped test."""
        self._record(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a module skipped as a whole."""
        self._record(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take a worker's skips: of a module skipped as a whole only the worker knows."""
        for nodeid, reason in getattr(node, "workeroutput", {}).get("unexpected_skips", []):
            if nodeid not in dict(self.unexpected):
                self.unexpected.append((nodeid, reason))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Turn unexpected skips into a failed session; a worker of pytest-xdist tells the session that started it."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["unexpected_skips"] = self.unexpected
        if self.unexpected and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name the unexpected skips."""
        if self.unexpected:
            terminalreporter.section("skips that tests/allowed_skips.txt does not name", red=True)
            for nodeid, reason in self.unexpected:
                terminalreporter.line(f"{nodeid}: {reason}")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Watch skips where CI=true."""
    if os.environ.get("CI") == "true":
        rules = SkipRules(ALLOWED_SKIPS.read_text(encoding="utf-8"))
        session.config.pluginmanager.register(SkipRecorder(rules), "skip-recorder")
