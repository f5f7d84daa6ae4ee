"""
A healthy server as a folder, to be damaged: an Atlas 800T A2 with eight 910B3 chips, its driver, firmware, CANN and nnal.

    python tests/fakehost/fake_machine.py DIR       write one; then `ascendd doctor --host-root DIR`

What the machine says of itself is in its files; what its tools say is in DIR/.answers (see replay.sh); what neither can
say is in DIR/.fake-host (see ascendd/host/fake_host.py).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import vendor_texts as texts

ASCEND = "usr/local/Ascend"
LATEST = f"/{ASCEND}/ascend-toolkit/latest"
NUM_CHIPS = 8
GIB = 2**30
# The machine's own clock: it was started five days ago, long after its packages were installed.
UPTIME_S = 5 * 86400
TOOLS = ("npu-smi", "dmesg", "journalctl", "systemctl", "lsmod", "timedatectl")
TIMEDATECTL = "show --property=NTP,NTPSynchronized,Timezone"
HCCN_TOOL = f"{ASCEND}/driver/tools/hccn_tool"
ENVIRON = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin",
    "HOME": "/root",
    "ASCEND_HOME_PATH": LATEST,
    "ASCEND_TOOLKIT_HOME": LATEST,
    "ASCEND_OPP_PATH": f"{LATEST}/opp",
    "ASCEND_AICPU_PATH": LATEST,
    "ATB_HOME_PATH": f"/{ASCEND}/nnal/atb/latest/atb/cxx_abi_1",
    "PYTHONPATH": f"{LATEST}/python/site-packages",
    "LD_LIBRARY_PATH": f"/{ASCEND}/driver/lib64/driver:/{ASCEND}/driver/lib64/common:{LATEST}/lib64"
    f":/{ASCEND}/nnal/atb/latest/atb/cxx_abi_1/lib",
    "FAKE_ACL_COUNT": str(NUM_CHIPS),
}
CANN_LIBRARIES = (
    "libhccl.so", "libacl_op_compiler.so", "libge_runner.so", "libgraph.so", "libruntime.so", "libopapi.so",
)  # fmt: skip
SITE = "opt/ascendd/current/lib/python3.11/site-packages"
# Drivers make their nodes for one group; 1000 is HwHiAiUser of etc/passwd.
NODE_OWNER = (1000, 1000, "0660")
UNIT_PROPERTIES = (
    "LoadState,ActiveState,Environment,EnvironmentFiles,UnsetEnvironment,ControlGroup,MemoryMax,CPUAffinity,"
    "User,Group,SupplementaryGroups,LimitNOFILE,LimitMEMLOCK,LimitNPROC,TasksMax"
)
NODES = (*(f"davinci{chip}" for chip in range(NUM_CHIPS)), "davinci_manager", "devmm_svm", "hisi_hdc")


class FakeMachine:
    """The folder `root` as a machine. `acl_library` is a built tests/fixtures/fake_acl.c; without it ACL is absent."""

    def __init__(self, root: Path, acl_library: Path | None = None, cann: str = "8.2.RC1") -> None:
        self.root = root
        self.environ = dict(ENVIRON)
        self.denied: dict[str, str] = {}
        self.disks = {
            "/": (400 * GIB, 300 * GIB), "/var/log": (100 * GIB, 80 * GIB), "/dev/shm": (64 * GIB, 64 * GIB),
            "/usr/local": (400 * GIB, 300 * GIB), "/root": (100 * GIB, 60 * GIB),
        }  # fmt: skip
        self.facts: dict[str, object] = {"owners": {f"/dev/{node}": NODE_OWNER for node in NODES}}
        self.cann = cann
        root.mkdir(parents=True, exist_ok=True)
        self.mark()
        self._write_bus()
        self._write_system()
        self._write_vendor_files(acl_library)
        self._write_answers()
        self.install_torch("2.6.0", "2.6.0")
        self.unit("qwen2")

    def mark(self) -> None:
        """Write `.fake-host` from the attributes; call it after changing one of them."""
        said = {"environ": self.environ, "denied": self.denied, "disks": self.disks, "facts": self.facts}
        self.write(".fake-host", json.dumps(said, indent=1))

    def write(self, path: str, text: str = "") -> Path:
        """Write a file below the root."""
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def edit(self, path: str, old: str, new: str) -> None:
        """Replace text in a file that is there."""
        text = (self.root / path.lstrip("/")).read_text()
        assert old in text, f"{path} holds no {old!r}"
        self.write(path, text.replace(old, new))

    def remove(self, *paths: str) -> None:
        """Remove files, links or folders; each must be there."""
        for path in paths:
            target = self.root / path.lstrip("/")
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            else:
                target.unlink()

    def link(self, path: str, to: str) -> None:
        """Make the symbolic link `path`; `to` can be a path of the machine that leads nowhere."""
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.symlink_to(to)

    def setenv(self, **variables: str | None) -> None:
        """Set variables of the service's environment; None takes one out."""
        for name, value in variables.items():
            self.environ.pop(name, None)
            if value is not None:
                self.environ[name] = value
        self.mark()

    def deny(self, path: str, reason: str = "Permission denied") -> None:
        """Let opening `path` fail."""
        self.denied[path] = reason
        self.mark()

    def tool(self, name: str, folder: str = "usr/local/bin") -> None:
        """Install a tool that replays answers."""
        target = self.root / folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(__file__).with_name("replay.sh"), target)
        target.chmod(0o755)

    def script(self, path: str, body: str) -> None:
        """Install a tool that is a shell script."""
        self.write(path, f"#!/bin/sh\n{body}\n").chmod(0o755)

    def answer(self, tool: str, arguments: str, text: str, status: int = 0, delay_s: float = 0.0) -> None:
        """Have `tool arguments` answer so."""
        arguments = arguments or "_"
        self.write(f".answers/{tool}/{arguments}", text)
        if status:
            self.write(f".answers/{tool}/{arguments}.status", str(status))
        if delay_s:
            self.write(f".answers/{tool}/{arguments}.delay", str(delay_s))

    def replay(self, tool: str, arguments: str, recording: str, status: int = 0) -> None:
        """Have `tool arguments` answer with a recorded output."""
        self.answer(tool, arguments, texts.recording(recording), status)

    def delay(self, tool: str, seconds: float) -> None:
        """Let every answer of `tool` take `seconds`."""
        self.write(f".answers/{tool}.delay", str(seconds))

    def edit_answer(self, tool: str, arguments: str, old: str, new: str) -> None:
        """Replace text in what `tool arguments` answers."""
        self.edit(f".answers/{tool}/{arguments}", old, new)

    def process(self, pid: int, name: str, *, holds: tuple[str, ...] = (), state: str = "S", user: int = 0) -> None:
        """Have a process that holds the device nodes `holds` open."""
        folder = f"proc/{pid}"
        self.write(
            f"{folder}/stat", f"{pid} ({name}) {state} 1 {pid} {pid} 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 100\n"
        )
        self.write(f"{folder}/comm", name + "\n")
        self.write(f"{folder}/cmdline", name + "\0-m\0server\0")
        self.write(
            f"{folder}/status", f"Name:\t{name}\nState:\t{state}\nPid:\t{pid}\nUid:\t{user}\t{user}\t{user}\t{user}\n"
        )
        self.write(f"{folder}/cgroup", "0::/system.slice/other.service\n")
        (self.root / folder / "fd").mkdir(exist_ok=True)
        for number, node in enumerate(holds, 3):
            self.link(f"{folder}/fd/{number}", node)

    def install_cann(self, version: str) -> None:
        """Have CANN of `version` at the same place."""
        self.write(
            f"{self.toolkit}/aarch64-linux/ascend_toolkit_install.info", texts.TOOLKIT_INFO.format(version=version)
        )
        self.write(f"{self.toolkit}/version.cfg", f"runtime_running_version=[7.7.0.1.231:{version}]\n")

    def package(self, name: str, version: str, folder: str = SITE) -> None:
        """Have a Python package in the environment of ascendd; only its metadata."""
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nOf a fake host.\n"
        self.write(f"{folder}/{name.replace('-', '_')}-{version}.dist-info/METADATA", text)

    def install_torch(self, torch: str, torch_npu: str) -> None:
        """Have this torch with this torch_npu, in the place of any other."""
        for path in (self.root / SITE).glob("torch*"):
            shutil.rmtree(path)
        self.package("ascendd", "0.1.0")
        self.package("torch", torch)
        self.package("torch-npu", torch_npu)
        self.write(f"{SITE}/torch_npu/lib/libtorch_npu.so", "ELF of a fake host")

    def unit(self, instance: str, **properties: str) -> None:
        """Have systemd know the unit of an instance, with the service's environment unless `properties` say another."""
        said = {
            "LoadState": "loaded", "ActiveState": "inactive", "User": "ascendd", "Group": "ascendd",
            "LimitNOFILE": "65536", "LimitMEMLOCK": "infinity", "LimitNPROC": "infinity", "TasksMax": "infinity",
            "Environment": " ".join(f"{name}={value}" for name, value in self.environ.items()), **properties,
        }  # fmt: skip
        text = "".join(f"{key}={value}\n" for key, value in said.items())
        self.answer("systemctl", f"show ascendd@{instance}.service --property={UNIT_PROPERTIES}", text)

    @property
    def toolkit(self) -> str:
        """Folder of CANN below the root."""
        return f"{ASCEND}/ascend-toolkit/{self.cann}"

    def _write_bus(self) -> None:
        for chip, bus_id in enumerate(texts.BUS_IDS):
            folder = f"sys/bus/pci/devices/{bus_id}"
            values = {"vendor": "0x19e5", "device": "0xd802", "subsystem_device": "0x3002", "class": "0x120000"}
            first = int(texts.CPUS[chip].split("-")[0])
            for name, value in {**values, "local_cpulist": texts.CPUS[chip], "numa_node": str(first // 24)}.items():
                self.write(f"{folder}/{name}", value + "\n")
        # A Kunpeng compression engine is a Huawei processing accelerator, and no NPU.
        self.write("sys/bus/pci/devices/0000:75:00.0/vendor", "0x19e5\n")
        self.write("sys/bus/pci/devices/0000:75:00.0/device", "0xa255\n")
        for node in NODES:
            self.write(f"dev/{node}")

    def _write_system(self) -> None:
        memory = {"MemTotal": 1536, "MemAvailable": 1400, "MemFree": 1300, "SwapTotal": 0, "SwapFree": 0}
        lines = [f"{key}: {size * 2**20} kB" for key, size in memory.items()]
        pages = {"HugePages_Total": 0, "HugePages_Free": 0, "Hugepagesize": "2048 kB"}
        self.write("proc/meminfo", "\n".join([*lines, *(f"{key}: {value}" for key, value in pages.items())]) + "\n")
        self.write("proc/uptime", f"{UPTIME_S}.00 900000.00\n")
        self.write("proc/self/limits", _LIMITS)
        self.write("proc/self/status", "Name:\tpython3\nUid:\t0\t0\t0\t0\nCpus_allowed_list:\t0-191\n")
        self.write("proc/modules", "drv_pcie_host 286720 1 - Live 0x0\ndrv_davinci_intf_host 94208 5 - Live 0x0\n")
        self.write("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n")
        self.write("proc/sys/net/ipv4/ip_local_reserved_ports", "60000-60031\n")
        self.write("proc/sys/vm/swappiness", "10\n")
        self.write("proc/net/tcp", _TCP_HEADER)
        self.write("proc/net/tcp6", _TCP_HEADER)
        for number in range(8):
            self.write(f"sys/devices/system/node/node{number}/cpulist", f"{24 * number}-{24 * number + 23}\n")
        for cpu in (0, 24, 48, 72, 96, 120, 144, 168):
            self.write(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor", "performance\n")
        self.write("sys/devices/system/cpu/online", "0-191\n")
        self.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
        self.write("etc/os-release", texts.OS_RELEASE)
        self.write("etc/passwd", "root:x:0:0::/root:/bin/bash\nHwHiAiUser:x:1000:1000::/home/HwHiAiUser:/bin/bash\n"
                                 "ascendd:x:990:990::/var/lib/ascendd:/sbin/nologin\n")  # fmt: skip
        self.write("etc/group", "root:x:0:\nHwHiAiUser:x:1000:ascendd\nascendd:x:990:\n")

    def _write_vendor_files(self, acl_library: Path | None) -> None:
        self.write("etc/ascend_install.info", texts.INSTALL_INFO)
        self.write("var/log/ascend_seclog/operation.log", texts.INSTALL_LOG)
        self.write(f"{ASCEND}/driver/version.info", texts.DRIVER_INFO)
        self.write(f"{ASCEND}/driver/tools/upgrade-tool").chmod(0o755)
        self.write(f"{ASCEND}/driver/lib64/driver/libdcmi.so")
        self.write(f"{ASCEND}/driver/lib64/common/libc_sec.so")
        self.write(f"{ASCEND}/firmware/version.info", texts.FIRMWARE_INFO)
        self.install_cann(self.cann)
        ops = f"package_name=Ascend-cann-kernels-910b\nversion={self.cann}\n"
        self.write(f"{self.toolkit}/aarch64-linux/ascend_kernels_install.info", ops)
        self.link(f"{ASCEND}/ascend-toolkit/latest", self.cann)
        self.write(f"{self.toolkit}/set_env.sh", "export ASCEND_HOME_PATH=" + LATEST + "\n")
        for folder in (
            "opp/built-in/op_impl/ai_core/tbe/kernel/ascend910b",
            "python/site-packages",
            "lib64",
            "include",
            # torch_npu refuses to be imported without these two.
            "runtime",
            "compiler",
        ):
            (self.root / self.toolkit / folder).mkdir(parents=True, exist_ok=True)
        self.write(f"{self.toolkit}/include/acl/acl.h", (texts.FIXTURES / "fake_acl.h").read_text())
        if acl_library is not None:
            # One library under every name: what counts here is that each is a whole one, and where it lies.
            for name in ("libascendcl.so", *CANN_LIBRARIES):
                self.link(f"{self.toolkit}/lib64/{name}", str(acl_library))
            self.link(f"{ASCEND}/driver/lib64/driver/libascend_hal.so", str(acl_library))
        self.write(f"{ASCEND}/nnal/atb/8.2.RC1/version.info", texts.NNAL_INFO.format(version=self.cann))
        self.write(f"{ASCEND}/nnal/atb/8.2.RC1/atb/cxx_abi_1/lib/libatb.so")
        self.write(f"{ASCEND}/nnal/atb/set_env.sh")
        self.link(f"{ASCEND}/nnal/atb/latest", "8.2.RC1")
        self.write("etc/hccn.conf", "")

    def _write_answers(self) -> None:
        for name in TOOLS:
            self.tool(name)
        self.script("usr/bin/gcc", 'exec /usr/bin/gcc "$@"')
        self.tool("hccn_tool", str(Path(HCCN_TOOL).parent))
        self.answer("npu-smi", "info", texts.info_table())
        self.replay("npu-smi", "info -t topo", "topo-910B3-8npu.txt")
        for chip in range(NUM_CHIPS):
            self.answer("npu-smi", f"info -t board -i {chip}", texts.fields("t-board-910B-24.1.0.txt", chip))
            self.answer("npu-smi", f"info -t ecc -i {chip}", texts.fields("t-ecc-910A-clean.txt", chip))
            self.answer("npu-smi", f"info -t health -i {chip} -c 0", texts.health(chip))
            self.answer("hccn_tool", f"-i {chip} -link -g", "link status: UP\n")
            self.replay("hccn_tool", f"-i {chip} -net_health -g", "hccn-net-health-init.txt")
            tls = texts.recording("hccn-tls.txt").replace("dev_id:0", f"dev_id:{chip}")
            self.answer("hccn_tool", f"-i {chip} -tls -g", tls)
        self.answer("journalctl", "-k -b -o short-monotonic --no-pager", "-- No entries --\n")
        self.answer("dmesg", "", "[    0.000000] Booting Linux on physical CPU 0x0000080000\n")
        self.answer("timedatectl", TIMEDATECTL, "Timezone=UTC\nNTP=yes\nNTPSynchronized=yes\n")
        self.answer("lsmod", "", "Module Size Used by\ndrv_pcie_host 286720 1\n")


_TCP_HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
_LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max stack size            8388608              unlimited            bytes
Max core file size        0                    unlimited            bytes
Max processes             4127000              4127000              processes
Max open files            1048576              1048576              files
Max locked memory         unlimited            unlimited            bytes
Max address space         unlimited            unlimited            bytes
"""


def build_acl(folder: Path) -> Path:
    """Compile the stand-in libascendcl into `folder` and return it."""
    library = folder / "libascendcl.so"
    source = texts.FIXTURES / "fake_acl.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    return library


def main(argv: list[str]) -> int:
    """Write a healthy machine into the folder named."""
    if len(argv) != 2 or os.path.exists(argv[1]):
        sys.stderr.write(f"usage: {argv[0]} DIR    (which must not exist yet)\n")
        return 64
    root = Path(argv[1]).resolve()
    root.mkdir(parents=True)
    FakeMachine(root, build_acl(root))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
