"""A fake host: a root folder, tools on PATH and vendor packages, with an installer that runs in a fork and may be killed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# Imported once here, so that the forks have it.
from ascendd.installer import __main__ as program
from ascendd.installer import host as host_module
from ascendd.installer import state as state_module

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FIXTURES = ROOT / "tests/fixtures/npu-smi"
IDLE = "info-24.1.rc3-910B3-2npu-idle.txt"
BUSY = "info-24.1.0-910B2-4npu-busy-multiproc.txt"
TOOLS = (
    "groupadd", "useradd", "userdel", "groupdel", "usermod", "systemd-sysusers", "systemd-tmpfiles", "systemctl",
    "apt-get", "dpkg", "dpkg-query", "dnf", "rpm",
)  # fmt: skip
DRIVER, FIRMWARE = "Ascend-hdk-910b-npu-driver_24.1.0_linux-x86_64.run", "Ascend-hdk-910b-npu-firmware_7.5.0.1.129.run"
TOOLKIT, OPS = "Ascend-cann-toolkit_8.5.0_linux-x86_64.run", "Ascend-cann-910b-ops_8.5.0_linux-x86_64.run"
NNAL = "Ascend-cann-nnal_8.5.0_linux-x86_64.run"
PACKAGES = (DRIVER, FIRMWARE, TOOLKIT, OPS, NNAL)


class Killed(Exception):
    """The forked installer was ended by SIGKILL."""


class FakeHost:
    """One host below `folder`/root; every verb runs in a fork of this process."""

    Killed = Killed  # For tests, which cannot import this file.

    def __init__(self, folder: Path, bundle: Path) -> None:
        self.folder, self.bundle = folder, bundle
        self.root, self.media, self.bin = folder / "root", folder / "media", folder / "bin"
        self.calls_path, self.output_path = folder / "calls", folder / "output"
        self.npu_smi = IDLE
        self.environment: dict[str, str] = {}
        for path in ("etc", "proc/sys/kernel/random", "sys/bus/pci/devices/0000:c1:00.0", "run/systemd/system", "home",
                     "usr/local/bin"):  # fmt: skip
            (self.root / path).mkdir(parents=True)
        self.write("etc/os-release", 'ID=openEuler\nPRETTY_NAME="openEuler 24.03"\nVERSION_ID="24.03"\n')
        self.write("etc/passwd", "root:x:0:0::/root:/bin/sh\n")
        self.write("etc/group", "root:x:0:\n")
        self.write("proc/sys/kernel/random/boot_id", "boot-1\n")
        self.write("sys/bus/pci/devices/0000:c1:00.0/vendor", "0x19e5\n")
        self.write("sys/bus/pci/devices/0000:c1:00.0/device", "0xd802\n")
        shutil.copy(HERE / "outlive.sh", folder)
        self.bin.mkdir()
        for tool in TOOLS:
            shutil.copy(HERE / "fake_tool.sh", self.bin / tool)
            (self.bin / tool).chmod(0o755)
        for tool in ("lspci", "ifconfig", "python3.11"):
            self.put_tool(tool)
        self.fill_media(*PACKAGES)

    def put_tool(self, name: str) -> None:
        """Give the host a command below its own /usr/bin, which is on PATH."""
        path = self.root / "usr/bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / "fake_tool.sh", path)
        path.chmod(0o755)

    def take_tools(self, *names: str) -> None:
        for name in names:
            (self.root / "usr/bin" / name).unlink()

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def fill_media(self, *names: str) -> None:
        """Make the media folder anew."""
        shutil.rmtree(self.media, ignore_errors=True)
        self.media.mkdir()
        for name in names:
            shutil.copy(HERE / "fake_package.sh", self.media / name)
        self.seal_media()

    def add_os_packages(self, **commands: str) -> None:
        """Put packages of the operating system into os/ of the media: the file's name to the command that it brings."""
        (self.media / "os").mkdir(exist_ok=True)
        for command, name in commands.items():
            (self.media / "os" / name).write_text(f"{command.replace('_', '.')}\n")
        self.seal_media()

    def seal_media(self) -> None:
        paths = [path for path in self.media.rglob("*") if path.suffix in (".run", ".deb", ".rpm")]
        digests = {path.relative_to(self.media): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
        (self.media / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in digests.items()))

    def install_by_hand(self, name: str, *, flags: tuple[str, ...] = ("--full",)) -> None:
        """Run a vendor package as an operator did before the installer came."""
        path = self.folder / name
        shutil.copy(HERE / "fake_package.sh", path)
        subprocess.run(["bash", path, *flags], env=self._environ(), check=False, capture_output=True)
        smi = self.root / "usr/local/bin/npu-smi"
        smi.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / "fake_tool.sh", smi)
        smi.chmod(0o755)

    def run(self, verb: str, *options: str, kill_at: int = 0) -> int:
        """Run a verb and return its exit status; at its `kill_at`th save of the state it dies. Raises Killed."""
        pid = os.fork()
        if pid == 0:
            self._be_installer([verb, "--root", str(self.root), *options], kill_at)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            raise Killed
        return os.waitstatus_to_exitcode(status)

    def apply(self, *options: str, kill_at: int = 0) -> int:
        return self.run("apply", "--yes", "--media", str(self.media), *options, kill_at=kill_at)

    def reboot(self) -> None:
        self.write("proc/sys/kernel/random/boot_id", "boot-2\n")

    def install(self) -> None:
        """Bring the host to its end undisturbed, with the one reboot."""
        assert self.apply() == 75, self.output
        self.reboot()
        assert self.run("resume", "--yes") == 0, self.output

    @property
    def output(self) -> str:
        return self.output_path.read_text()

    @property
    def calls(self) -> list[str]:
        """What was called in this order: vendor packages and tools."""
        return self.calls_path.read_text().splitlines() if self.calls_path.exists() else []

    @property
    def vendor_calls(self) -> list[str]:
        return [call for call in self.calls if call.startswith("Ascend-")]

    @property
    def state(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.root / "var/lib/ascendd-installer/state.json").read_text())
        return data

    def tree(self, *, with_state: bool = True) -> dict[str, tuple[Any, ...]]:
        """Return every path with its kind, mode and content, without the log, and the state without times."""
        found: dict[str, tuple[Any, ...]] = {}
        for path in sorted(self.root.rglob("*")):
            name = str(path.relative_to(self.root))
            if name.startswith("proc/sys"):
                continue
            if "ascendd-installer" in name or (not with_state and name in ("var/lib", "var/log", "var")):
                continue
            if path.is_symlink():
                found[name] = ("link", str(path.readlink()))
            elif path.is_dir():
                found[name] = ("folder", path.stat().st_mode)
            else:
                found[name] = ("file", path.stat().st_mode, path.read_bytes().replace(str(self.folder).encode(), b"@"))
        if with_state and (self.root / "var/lib/ascendd-installer/state.json").exists():
            state = self.state
            for entry in state["files"].values():
                entry.pop("mtime_ns", None)
            state["options"].pop("media", None)
            found["STATE"] = (json.dumps(state, sort_keys=True),)
        return found

    def _environ(self) -> dict[str, str]:
        return {
            "PATH": f"{self.bin}:{self.root}/usr/bin:/usr/bin:/bin",
            "FAKE_ROOT": str(self.root),
            "FAKE_CALLS": str(self.calls_path),
            "FAKE_NPU_SMI": str(FIXTURES / self.npu_smi),
            "ASCENDD_INSTALL_MACHINE": "x86_64",
            **self.environment,
        }

    def _be_installer(self, argv: list[str], kill_at: int) -> None:
        """In the fork: become the installer of the bundle. Never returns."""
        status = 99
        try:
            output = os.open(self.output_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            os.environ.clear()
            os.environ.update(self._environ())
            program.bundle_folder = lambda: str(self.bundle)
            host_module.Host.free_bytes = lambda _self, _path: 1 << 40  # type: ignore[method-assign]
            os.geteuid = lambda: 0
            os.fsync = lambda _descriptor: None  # The tests cut no power, and the disk is slow.
            if kill_at:
                save, counter = state_module.InstallState.save, iter(range(1, 1 << 30))

                def save_and_die(it: Any) -> None:
                    save(it)
                    if next(counter) == kill_at:
                        os.kill(os.getpid(), signal.SIGKILL)

                state_module.InstallState.save = save_and_die  # type: ignore[method-assign]
            status = program.main(argv)
            sys.stdout.flush()
            sys.stderr.flush()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 98
        except BaseException:
            import traceback

            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(status)


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle as packaging/bundle.sh makes it, with wheels that only have names."""
    folder = tmp_path_factory.mktemp("bundle")
    wheels = folder / "wheels"
    wheels.mkdir()
    for name in (
        "ascendd-0.1.0-py3-none-any",
        "torch-2.9.0-cp311-cp311-manylinux_2_28_x86_64",
        "torch_npu-2.9.0-cp311-cp311-manylinux_2_28_x86_64",
    ):
        (wheels / f"{name}.whl").write_text(name)
    out = folder / "ascendd-0.1.0"
    subprocess.run([ROOT / "packaging/bundle.sh", "--wheels", wheels, out], check=True, capture_output=True)
    return out


@pytest.fixture
def make_host(tmp_path: Path, bundle: Path) -> Callable[[str], FakeHost]:
    """Make fake hosts by name."""

    def make(name: str) -> FakeHost:
        (tmp_path / name).mkdir()
        return FakeHost(tmp_path / name, bundle)

    return make


@pytest.fixture
def host(make_host: Callable[[str], FakeHost]) -> FakeHost:
    """One fake host: openEuler, one 910B, nothing installed."""
    return make_host("host")
