"""
Runs as root inside a throw-away machine with a real systemd: makes it a server with eight NPUs, and starts an instance.

    npu_host_driver.py REPOSITORY BIN_FOLDER STANDIN_FOLDER RESULT_FILE

The vendor's files lie where they lie on a server, because the gate of a start looks at `/` and nowhere else; torch_npu
is the real one on the stand-in of STANDIN_FOLDER. RESULT_FILE gets the facts as JSON; nothing is judged here.
"""

from __future__ import annotations

import json
import os
import pty
import shutil
import sys
import time
import traceback
import tty
from pathlib import Path
from typing import Any

import yaml
from exporter_driver import exporter
from systemd_driver import UNIT, children, get_metrics, install, post, run, show, start, wait

HOST = Path("/srv/host")
MACHINE = Path("/var/lib/ascendd/npu")
REFUSED, ACCEPTED = "7.0.0", "7.0.0.H100"
# What a site says that serves with versions whose pairing no table of the vendor lists.
POLICY = {
    "permit": [
        {**pair, "cann": ACCEPTED, "reason": "served here for a month, change 4711"}
        for pair in ({"driver": "24.1.rc3"}, {"torch": "2.13.0"}, {"torch_npu": "2.13.0"})
    ]
}
DOCTOR = "site-policy,npu-presence,cann-version,service-environment,vendor-libraries,driver-cann"


def make_server(repository: Path, standin: Path) -> Any:
    """Put a fake host's files at their real paths and return it; what is changed in it, the server shows at once."""
    sys.path[:0] = [str(repository / "tests"), str(repository / "tests/fakehost")]
    from fake_machine import NODES, FakeMachine

    library = standin / "lib/libstandin.so"
    server = FakeMachine(HOST, library, cann=REFUSED)
    # One library under every name that torch_npu needs, as the stand-in's own folder has it.
    for name in sorted(path.name for path in (standin / "lib").glob("*.so*")):
        server.link(f"{server.toolkit}/lib64/{name}", str(library))
    run("groupadd", "HwHiAiUser")
    run("usermod", "-aG", "HwHiAiUser", "ascendd")
    for node in NODES:
        path = Path("/dev") / node
        path.touch()
        shutil.chown(path, "root", "HwHiAiUser")
        path.chmod(0o660)
    for path in ("/usr/local/Ascend", "/sys/bus/pci/devices"):
        Path(path).mkdir(parents=True, exist_ok=True)
        run("mount", "--bind", f"{HOST}{path}", path)
    shutil.copy(HOST / "etc/ascend_install.info", "/etc/ascend_install.info")
    tool = Path("/usr/local/bin/npu-smi")
    tool.write_text(f'#!/bin/sh\nFAKE_HOST={HOST} exec {HOST}/usr/local/bin/npu-smi "$@"\n')
    tool.chmod(0o755)
    return server


def configure(repository: Path, standin: Path, server: Any) -> None:
    """Have the instance use the NPU, with CANN's variables where the unit reads them and the site's policy."""
    from standin.machine import Machine

    Machine(MACHINE, num_devices=8, soc="Ascend910B3", cann=ACCEPTED, standin=standin)
    run("chown", "-R", "ascendd:ascendd", str(MACHINE))
    variables = {
        name: value for name, value in server.environ.items() if name not in ("PATH", "HOME", "FAKE_ACL_COUNT")
    }
    variables["PYTHONPATH"] = f"{repository}/tests/standin/child:{standin}/site:{variables['PYTHONPATH']}"
    variables |= {
        "STANDIN_NPU_MACHINE": f"{MACHINE}/machine",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "TASK_QUEUE_ENABLE": "0",
        # The stand-in has no virtual memory for segments that grow.
        "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:False",
        "OMP_NUM_THREADS": "1",
    }
    Path("/etc/ascendd/cann.env").write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
    Path("/etc/ascendd/policy.json").write_text(json.dumps(POLICY))
    # A server is no container: neither by the marks of the machine around this one, nor by what systemd tells services.
    for mark in ("/.dockerenv", "/run/.containerenv"):
        Path(mark).unlink(missing_ok=True)
    # PrivateTmp hides what lies below /tmp.
    bind = f"BindReadOnlyPaths={standin}\n" if standin.is_relative_to("/tmp") else ""
    Path("/etc/systemd/system/ascendd@.service.d/server.conf").write_text(
        f"[Service]\nUnsetEnvironment=container\n{bind}"
    )
    run("systemctl", "daemon-reload")
    file = Path("/etc/ascendd/instances/qwen2.yaml")
    config = yaml.safe_load(file.read_text())
    config["model"] |= {"dtype": "float32", "max_model_len": 512}
    config["engine"] = {"device": "npu", "max_num_seqs": 4, "kv_cache_memory": "64MiB"}
    config["health"] = {"checks_interval_s": 2}
    file.write_text(yaml.safe_dump(config))


def doctor() -> dict[str, str]:
    """Return check -> verdict as the operator would see it for the instance."""
    text = run("/opt/ascendd/current/bin/ascendd", "doctor", "--instance", "qwen2", "--json", "--only", DOCTOR)
    return {check["id"]: f"{check['verdict']}: {check['summary']}" for check in json.loads(text)["checks"]}


def refused() -> dict[str, Any]:
    """Start the instance on a CANN that the gate does not let pass."""
    said = run("systemctl", "start", UNIT)
    return {
        "said": said,
        **show(UNIT, "ActiveState", "Result", "ExecMainStatus", "NRestarts", "StatusText"),
        "status": run("systemctl", "status", UNIT, "--no-pager", "--full"),
        "answered": post().status,
        "doctor": doctor(),
    }


def accepted() -> dict[str, Any]:
    """Start it with the hotfix installed."""
    begun = start()
    pids = children()
    environ = dict(
        line.partition("=")[::2] for line in Path(f"/proc/{pids['engine']}/environ").read_text().split("\0") if line
    )
    maps = Path(f"/proc/{pids['engine']}/maps").read_text()
    return {
        "seen": begun["seen"],
        "took_s": begun["took_s"],
        "status": run("systemctl", "status", UNIT, "--no-pager", "--full", "-n", "0"),
        "answer": post(8).body,
        "visible": environ.get("ASCEND_RT_VISIBLE_DEVICES"),
        "libraries": [name for name in ("libtorch_npu.so", "libstandin.so") if f"/{name}\n" in maps],
        "loaded": event("engine.loaded"),
        "doctor": doctor(),
        "doctor_without_policy": without_policy(),
    }


def kernel() -> int:
    """
    Give the machine a kernel that its journal hears, and return the descriptor that takes the kernel's records.

    A booted container has no /dev/kmsg, and a FIFO would hand the journal its own lines. Of a terminal each read is a
    record, as of the kernel's device.
    """
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    Path("/dev/kmsg").symlink_to(os.ttyname(theirs))
    # A container's boot id lies over the kernel's in /proc, which systemd mounts anew for a unit as shut in as ours: the
    # journal and its reader would each mean another boot.
    run("umount", "/proc/sys/kernel/random/boot_id")
    run("systemctl", "restart", "systemd-journald")
    os.write(ours, b"6,1,1000,-;Booting Linux\n")
    wait(lambda: "Booting Linux" in run("journalctl", "-k", "-b", "--no-pager"), "the kernel's line in the journal")
    return ours


def rounds(kernel_log: int) -> dict[str, Any]:
    """Have the kernel report a chip while the instance serves, and wait for a round of live checks that hears of it."""
    wait(lambda: _verdict() is not None, "a round of live checks")
    before = {"verdict": _verdict(), "status": show(UNIT, "StatusText")["StatusText"]}
    os.write(kernel_log, b"3,2,5000000,-;devdrv: device(2) is not working.\n")
    wait(lambda: "kernel-log failed" in show(UNIT, "StatusText")["StatusText"], "a round that sees the fault")
    dmesg = run("systemctl", "show", UNIT, "-pProtectKernelLogs", "-pSupplementaryGroups").splitlines()
    return {
        "before": before,
        "unit": sorted(dmesg),
        "answered": post().status,
        "log": event("supervisor.check", check="kernel-log"),
    }


def shut_out() -> dict[str, Any]:
    """Take the service's group away and start it again: the fault is still in the journal."""
    drop_in = Path("/etc/systemd/system/ascendd@.service.d/shut.conf")
    drop_in.write_text("[Service]\nSupplementaryGroups=\n")
    run("systemctl", "daemon-reload")
    run("systemctl", "restart", UNIT)
    wait(lambda: _verdict() is not None, "a round of live checks")
    return {"verdict": _verdict(), "log": event("supervisor.check", check="kernel-log")}


def _verdict() -> str | None:
    time.sleep(0.5)  # /metrics refuses who asks too often
    lines = [line for line in get_metrics().splitlines() if line.startswith('ascendd_check_verdict{check="kernel-log"')]
    return lines[0].rpartition(" ")[2] if lines else None


def event(name: str, **facts: str) -> dict[str, Any]:
    """Return the latest line of the journal with this event and these facts."""
    lines = run("journalctl", "-u", UNIT, "-o", "cat", "--no-pager").splitlines()
    events = [json.loads(line) for line in lines if line.startswith('{"timestamp"')]
    return [line for line in events if line["event"] == name and facts.items() <= line.items()][-1]


def without_policy() -> dict[str, str]:
    """Ask the doctor what it would say if the site had no file."""
    policy = Path("/etc/ascendd/policy.json")
    policy.rename(f"{policy}.away")
    try:
        return doctor()
    finally:
        Path(f"{policy}.away").rename(policy)


def main(repository: str, bin_folder: str, standin: str, result: str) -> int:
    """Collect all facts; what breaks is a fact, too."""
    facts: dict[str, Any] = {}
    try:
        kernel_log = kernel()
        facts["install"] = install(Path(repository), Path(bin_folder))
        server = make_server(Path(repository), Path(standin))
        configure(Path(repository), Path(standin), server)
        facts["refused"] = refused()
        server.install_cann(ACCEPTED)
        # Neither lists the other, which fails unless the site permits it.
        info = f"{server.toolkit}/aarch64-linux/ascend_toolkit_install.info"
        server.edit(info, ",[V100R001C18],[V100R001C19],[V100R001C20],[V100R001C21]", "")
        facts["accepted"] = accepted()
        facts["rounds"] = rounds(kernel_log)
        facts["shut"] = shut_out()
        facts["exporter"] = exporter()
        facts["stopped"] = show(UNIT, "ActiveState", "Result")
    except Exception:
        facts["broken"] = traceback.format_exc() + run("journalctl", "-n", "80", "-o", "cat", "--no-pager")
    Path(result).write_text(json.dumps(facts, indent=2))
    return 0


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main(*sys.argv[1:]))
