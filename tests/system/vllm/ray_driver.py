"""
Runs as root inside a throw-away machine with a real systemd: two hosts of one cluster, each a network namespace.

    ray_driver.py REPOSITORY BIN_FOLDER RAY_VENV RESULT_FILE

RAY_VENV has a real Ray, or is `standin`. RESULT_FILE gets the facts as JSON; nothing is judged here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from systemd_machine import exists, run, show, wait

HOSTS = {"head": ("h1", "10.9.0.1"), "worker": ("h2", "10.9.0.2")}
PORT = 6379
TOKEN = "token-of-the-lab-" + "0123456789abcdef" * 2
UNITS = Path("/etc/systemd/system")
DEADLINE_S = 180.0


def network() -> None:
    """Join the two by `ray0`, the interface of the cluster, and by `other0`."""
    for namespace, _ in HOSTS.values():
        run("ip", "netns", "add", namespace)
        run("ip", "-n", namespace, "link", "set", "lo", "up")
    for name, net in (("ray0", "10.9.0"), ("other0", "10.8.0")):
        run("ip", "link", "add", name, "netns", "h1", "type", "veth", "peer", "name", name, "netns", "h2")
        for number, namespace in ((1, "h1"), (2, "h2")):
            run("ip", "-n", namespace, "address", "add", f"{net}.{number}/24", "dev", name)
            run("ip", "-n", namespace, "link", "set", name, "up")


def environment(repository: Path, bin_folder: Path, ray: str) -> Path:
    """Return the environment with Ray: the given one, or one of the stand-in."""
    if ray != "standin":
        return Path(ray)
    venv = Path("/opt/ray")
    (venv / "bin").mkdir(parents=True)
    script = repository / "tests/system/vllm/standin_ray.py"
    for name in ("ray", "python"):
        path = venv / "bin" / name
        path.write_text(f'#!/bin/sh\nexec {bin_folder / "python"} {script} {name} "$@"\n')
        path.chmod(0o755)
    return venv


def install(repository: Path, bin_folder: Path, ray: str) -> dict[str, Any]:
    """Put units, user, folders and two instances in place; no token yet."""
    os.chmod("/root", 0o711)  # where an interpreter of a developer's machine lives; the overlay forgets it
    opt = Path("/opt/ascendd/current/bin")
    opt.mkdir(parents=True)
    (opt / "ascendd").symlink_to(bin_folder / "ascendd")
    for file in (repository / "systemd").glob("ascendd*"):
        shutil.copy(file, UNITS / file.name)
    shutil.copy(repository / "systemd/sysusers.d/ascendd.conf", "/usr/lib/sysusers.d/ascendd.conf")
    shutil.copy(repository / "systemd/tmpfiles.d/ascendd.conf", "/usr/lib/tmpfiles.d/ascendd.conf")
    run("systemd-sysusers", "ascendd.conf")
    run("systemd-tmpfiles", "--create", "ascendd.conf")
    venv = environment(repository, bin_folder, ray)
    shown = [folder for folder in (repository, bin_folder.parent, venv) if folder.is_relative_to("/tmp")]
    binds = "".join(f"BindReadOnlyPaths={folder}\n" for folder in shown)
    for name, (namespace, address) in HOSTS.items():
        # A host's state is its own.
        state = Path(f"/var/lib/ascendd-{name}")
        state.mkdir()
        shutil.chown(state, "ascendd", "ascendd")
        drop_in = UNITS / f"ascendd-ray@{name}.service.d"
        drop_in.mkdir()
        (drop_in / "lab.conf").write_text(
            f"[Service]\nProtectHome=read-only\n{binds}NetworkNamespacePath=/run/netns/{namespace}\n"
            f"BindPaths={state}:/var/lib/ascendd\nRestartSec=1\n"
        )
        file = Path(f"/etc/ascendd/instances/{name}.yaml")
        file.write_text(
            f"model: {{path: /m}}\nengine: {{backend: vllm, device: cpu, vllm: {{venv: {venv}}}}}\n"
            f"cluster: {{head: 10.9.0.1, address: {address}, interface: ray0, nodes: 2, port: {PORT}}}\n"
        )
        shutil.chown(file, "root", "ascendd")
    run("systemctl", "daemon-reload")
    verify = run("systemd-analyze", "verify", "ascendd-ray@head.service")
    return {
        "verify": [line for line in verify.splitlines() if "ascendd-ray" in line],
        "exposure": run("systemd-analyze", "security", "ascendd-ray@head.service", "--no-pager").splitlines()[-1],
    }


def cluster(name: str, verb: str, *words: str) -> dict[str, Any]:
    """Run `ascendd cluster VERB` on that host."""
    namespace = HOSTS[name][0]
    argv = ["ip", "netns", "exec", namespace, "/opt/ascendd/current/bin/ascendd", "cluster", verb, "-i", name, *words]
    begun = time.monotonic()
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return {"status": done.returncode, "out": done.stdout, "err": done.stderr, "took_s": time.monotonic() - begun}


def nodes(name: str = "head") -> dict[str, Any]:
    """Return what `ascendd cluster status --json` says, with its exit status."""
    found = cluster(name, "status", "--json")
    said = json.loads(found["out"]) if found["out"].startswith("{") else {"error": found["err"]}
    return {**said, "status": found["status"]}


def unit(name: str) -> str:
    """Return the name of the host's unit."""
    return f"ascendd-ray@{name}.service"


def processes(name: str) -> list[int]:
    """Return the pids in the unit's control group, zombies left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if unit(name) in (entry / "cgroup").read_text() and exists(int(entry.name)):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def raylet(name: str) -> int:
    """Return the pid of the node's raylet; 0 where it has none."""
    for pid in processes(name):
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if argv[0].endswith(b"raylet"):
            return pid
    return 0


def reaches(address: str, port: int) -> str:
    """Return how a connection from the worker's host ends."""
    code = (
        "import socket,sys\ntry:\n socket.create_connection((sys.argv[1],int(sys.argv[2])),5); print('connected')\n"
        "except OSError as error: print(type(error).__name__)"
    )
    return run("ip", "netns", "exec", "h2", sys.executable, "-c", code, address, str(port)).strip()


def filters() -> bool:
    """Return whether this machine's systemd keeps addresses away at all: not below a mixed hierarchy of groups."""
    argv = ["systemd-run", "--quiet", "--unit=filter-probe", "-p", "NetworkNamespacePath=/run/netns/h1"]
    run(*argv, "-p", "IPAddressDeny=10.8.0.0/24", sys.executable, "-m", "http.server", "8099", "--bind", "0.0.0.0")
    wait(lambda: reaches("10.9.0.1", 8099) == "connected", "the probe's listener", DEADLINE_S)
    found = reaches("10.8.0.1", 8099)
    run("systemctl", "stop", "filter-probe")
    return found != "connected"


def without_token() -> dict[str, Any]:
    """Neither the verb nor the unit makes a cluster without a token."""
    refused = cluster("head", "join", "--wait", "0")
    run("systemctl", "start", unit("head"))
    wait(lambda: show(unit("head"), "ActiveState")["ActiveState"] == "failed", "the end of the unit", DEADLINE_S)
    shown = show(unit("head"), "ExecMainStatus", "NRestarts")
    run("systemctl", "reset-failed", unit("head"))
    return {"verb": refused, "unit_status": shown["ExecMainStatus"], "restarts": shown["NRestarts"]}


def joined() -> dict[str, Any]:
    """Give both their token and join; look at what runs."""
    for name in HOSTS:
        path = Path(f"/etc/ascendd/keys/{name}.ray")
        path.write_text(TOKEN + "\n")
        path.chmod(0o600)
    head, alone = cluster("head", "join"), nodes()
    worker, both = cluster("worker", "join"), nodes()
    told = {}
    for name in HOSTS:
        text = b"".join(
            Path(f"/proc/{pid}/{part}").read_bytes() for pid in processes(name) for part in ("environ", "cmdline")
        )
        told[name] = TOKEN.encode() in text
    run("journalctl", "--sync")
    return {
        "head": head, "alone": alone, "worker": worker, "both": both,
        "token_shown": told, "token_logged": TOKEN in run("journalctl", "-b", "-o", "cat", "--no-pager"),
        "users": sorted({run("ps", "-o", "user=", "-p", str(pid)).strip() for pid in processes("worker")}),
        "enabled": {name: run("systemctl", "is-enabled", unit(name)).strip() for name in HOSTS},
        "drop_in": (UNITS / f"{unit('head')}.d/50-interface.conf").read_text(),
        "interfaces": show(unit("head"), "RestrictNetworkInterfaces")["RestrictNetworkInterfaces"],
        "token_mode": oct(Path("/etc/ascendd/keys/worker.ray").stat().st_mode),
        "pid_before": show(unit("worker"), "MainPID")["MainPID"],
        "again": cluster("worker", "join"),
        "pid_after": show(unit("worker"), "MainPID")["MainPID"],
        "listeners": run("ip", "netns", "exec", "h1", "ss", "-Hltn").splitlines(),
    }  # fmt: skip


def other_interface() -> dict[str, Any]:
    """Try the head's port over both interfaces."""
    return {"filters": filters(), "ray0": reaches("10.9.0.1", PORT), "other0": reaches("10.8.0.1", PORT)}


def stranger() -> dict[str, Any]:
    """Ask with another token."""
    path = Path("/etc/ascendd/keys/worker.ray")
    path.write_text("f" * 64)
    found = cluster("worker", "status", "--json")
    path.write_text(TOKEN + "\n")
    return found


def killed(pid: int) -> dict[str, Any]:
    """SIGKILL a process of the worker; the head sees it go, and come back by itself."""
    before = processes("worker")
    restarts = int(show(unit("worker"), "NRestarts")["NRestarts"])
    begun = time.monotonic()
    os.kill(pid, 9)
    wait(lambda: int(show(unit("worker"), "NRestarts")["NRestarts"]) > restarts, "a restart", DEADLINE_S)
    down_s = time.monotonic() - begun
    wait(lambda: raylet("worker") not in (0, *before), "a new raylet", DEADLINE_S)
    wait(lambda: nodes()["status"] == 0, "the return of the worker", DEADLINE_S)
    return {
        "restarted_s": down_s,
        "back_s": time.monotonic() - begun,
        "left": [one for one in before if exists(one)],
        "nodes": nodes(),
    }


def paused() -> dict[str, Any]:
    """Stop the unit of the worker by hand, look at the head, and start it again."""
    run("systemctl", "stop", unit("worker"))
    wait(lambda: nodes()["status"] == 1, "the loss of the worker", DEADLINE_S)
    lost, text = nodes(), cluster("head", "status")
    run("systemctl", "start", unit("worker"))
    wait(lambda: nodes()["status"] == 0, "the return of the worker", DEADLINE_S)
    return {"lost": lost, "text": text, "back": nodes()}


def left() -> dict[str, Any]:
    """Leave with the worker, then with the head; nothing may be left of either."""
    before = processes("worker")
    worker = cluster("worker", "leave")
    found = {
        "worker": worker,
        "left_over": [pid for pid in before if exists(pid)],
        "nodes": nodes(),
        "enabled": run("systemctl", "is-enabled", unit("worker")).strip(),
        "drop_in": (UNITS / f"{unit('worker')}.d/50-interface.conf").exists(),
    }
    before = processes("head")
    return {
        **found,
        "head": cluster("head", "leave"),
        "head_left_over": [pid for pid in before if exists(pid)],
        "listeners": run("ip", "netns", "exec", "h1", "ss", "-Hltn").splitlines(),
    }


def main() -> int:
    """Live through it all; whatever happens, the facts so far are written."""
    repository, bin_folder, ray, result = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    facts: dict[str, Any] = {}
    try:
        network()
        facts["install"] = install(repository, bin_folder, ray)
        facts["without_token"] = without_token()
        facts["joined"] = joined()
        facts["other_interface"] = other_interface()
        facts["stranger"] = stranger()
        facts["killed_raylet"] = killed(raylet("worker"))
        facts["killed_main"] = killed(int(show(unit("worker"), "MainPID")["MainPID"]))
        facts["paused"] = paused()
        facts["left"] = left()
    except BaseException:  # reported to the test, which fails with it
        facts["broken"] = traceback.format_exc() + run("journalctl", "-n", "80", "--no-pager", "-u", "ascendd-ray@*")
    result.write_text(json.dumps(facts, default=str))
    return 0


if __name__ == "__main__":
    sys.exit(main())
