"""
Runs as root inside a fresh Debian machine with a real systemd: the life of the package, from install to purge.

    deb_driver.py OLD_DEB NEW_DEB MODEL RESULT_FILE

Standard library only: nothing but the package is installed there. Nothing is judged here.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

UNIT = "ascendd@qwen2.service"
INSTANCE = Path("/etc/ascendd/instances/qwen2.yaml")
# Where a package may leave something; caches and logs of the system itself are not its own.
PLACES = ("/etc", "/opt", "/usr", "/var/lib", "/var/log")
NOT_OURS = (
    "/var/lib/dpkg", "/var/lib/apt", "/var/lib/systemd", "/var/lib/dbus", "/var/log/journal", "/var/log/dpkg.log",
    "/var/log/apt", "/etc/ld.so.cache", "/usr/lib/python3", "/usr/share/python3", "/var/log/wtmp", "/var/log/btmp",
    "/etc/passwd-", "/etc/group-", "/etc/shadow-", "/etc/gshadow-", "/var/log/faillog", "/var/log/lastlog", "/etc/.pwd.lock",
)  # fmt: skip


def run(*argv: str | Path) -> tuple[int, str]:
    """Run a command; return its status and what it prints."""
    done = subprocess.run([str(part) for part in argv], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def install(package: Path) -> tuple[int, str]:
    """Install with dpkg alone, so that no network can help."""
    return run("env", "DEBIAN_FRONTEND=noninteractive", "dpkg", "-i", package)


def names() -> set[str]:
    """Return every path at the places that a package could leave something at."""
    found: set[str] = set()
    for place in PLACES:
        for folder, folders, files in os.walk(place):
            if folder.startswith(NOT_OURS):
                folders.clear()
                continue
            found.update(f"{folder}/{name}" for name in (*folders, *files))
    return {path for path in found if not path.startswith(NOT_OURS) and "__pycache__" not in path}


class Answer(threading.Thread):
    """One streamed answer, long enough to be in flight while something else happens."""

    def __init__(self, max_tokens: int) -> None:
        super().__init__(daemon=True)
        self._max_tokens = max_tokens
        self.flowing = threading.Event()
        self.body = ""

    def run(self) -> None:
        """Ask, and keep what comes."""
        connection = http.client.HTTPConnection("127.0.0.1", 8000, timeout=120)
        body = {"model": "qwen2", "prompt": "hello", "max_tokens": self._max_tokens, "ignore_eos": True, "stream": True}
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            while line := answer.readline():
                self.body += line.decode()
                self.flowing.set()
        except OSError as error:
            self.body += f"broken: {error}"


def ask() -> dict[str, Any]:
    """Ask for four tokens."""
    answer = Answer(4)
    answer.start()
    answer.join(60)
    return {"body": answer.body[-300:]}


def configure(model: Path) -> dict[str, Any]:
    """Make, change and take back instances as an operator does; the one that is to run is left."""
    verbs: dict[str, Any] = {}
    verbs["topology"] = run("ascendd", "instance", "topology")
    verbs["create"] = run("ascendd", "instance", "create", "qwen2", "--model", model, "--device", "cpu")
    verbs["again"] = run("ascendd", "instance", "create", "qwen2", "--model", model, "--device", "cpu")
    verbs["no_model"] = run("ascendd", "instance", "create", "none", "--model", "/nowhere", "--device", "cpu")
    text = (
        f"model: {{path: {model}}}\nengine: {{max_num_blocks: 2048, device: cpu}}\nrecovery: {{drain_timeout_s: 80}}\n"
    )
    change = Path("/root/change.yaml")
    change.write_text(text.replace("max_num_blocks", "max_blocks"))
    verbs["wrong_edit"] = run("ascendd", "instance", "edit", "qwen2", "--from", change)
    verbs["kept"] = "max_blocks" not in INSTANCE.read_text()
    change.write_text(text)
    verbs["edit"] = run("ascendd", "instance", "edit", "qwen2", "--from", change)
    verbs["mode"] = f"{INSTANCE.stat().st_mode:o} {INSTANCE.owner()}:{INSTANCE.group()}"
    verbs["second"] = run(
        "ascendd", "instance", "create", "second", "--model", model, "--device", "cpu", "--port", "8001", "--keys"
    )
    verbs["key"] = [path.name for path in Path("/etc/ascendd/keys").iterdir()]
    verbs["delete"] = run("ascendd", "instance", "delete", "second")
    verbs["left"] = [str(path) for path in (*Path("/etc/ascendd").rglob("*"), *Path("/etc/systemd/system").rglob("*"))
                     if "second" in path.name]  # fmt: skip
    return verbs


def release_version() -> str:
    """Return what `ascendd --version` says."""
    return run("ascendd", "--version")[1].strip()


def live(old: Path, new: Path, model: Path) -> dict[str, Any]:
    """Install, serve, upgrade with a request in flight, roll back, purge."""
    facts: dict[str, Any] = {}
    before = names()
    started = time.monotonic()
    facts["install"] = install(old)
    facts["install_s"] = time.monotonic() - started
    if facts["install"][0] != 0:
        return facts
    facts["version"] = release_version()
    facts["doctor"] = run("ascendd", "doctor")
    facts["man"] = [Path(path).exists() for path in (
        "/usr/share/man/man8/ascendd.8.gz", "/usr/share/man/man5/ascendd.yaml.5.gz",
        "/usr/share/bash-completion/completions/ascendd",
    )]  # fmt: skip
    target = Path("/var/lib/ascendd/models/qwen2")
    shutil.copytree(model, target)
    run("chown", "-R", "ascendd:ascendd", target)
    facts["verbs"] = configure(target)
    facts["start"] = run("systemctl", "enable", "--quiet", "--now", UNIT)
    facts["answer"] = ask()
    facts["list_instances"] = run("ascendd", "instance", "list", "--json")
    facts["status"] = run("ascendd", "status", "--json")
    # As a member of no group that may: the socket is the service's own.
    facts["order_of_another"] = run("setpriv", "--reuid=65534", "--clear-groups", "ascendd", "drain", "qwen2")
    facts["orders"] = {verb: run("ascendd", verb, "qwen2") for verb in ("drain", "resume", "reload")}
    facts["after_orders"] = ask()["body"]

    stream = Answer(1500)
    stream.start()
    facts["was_flowing"] = stream.flowing.wait(60)
    started = time.monotonic()
    facts["upgrade"] = install(new)
    facts["upgrade_s"] = time.monotonic() - started
    stream.join(120)
    facts["stream_end"] = stream.body[-300:]
    facts["after_upgrade"] = [release_version(), run("systemctl", "is-active", UNIT)[1].strip(), ask()["body"]]
    facts["list"] = run("ascendd", "release", "list")[1]
    facts["configuration_stays"] = INSTANCE.read_text().startswith("model: ")

    started = time.monotonic()
    facts["rollback"] = run("ascendd", "release", "rollback")
    facts["rollback_s"] = time.monotonic() - started
    facts["after_rollback"] = [release_version(), run("systemctl", "is-active", UNIT)[1].strip(), ask()["body"]]
    facts["journal"] = run("journalctl", "-u", UNIT, "-n", "20", "--no-pager", "-o", "cat")[1]

    facts["purge"] = run("dpkg", "--purge", "ascendd")
    facts["active_after"] = run("systemctl", "is-active", UNIT)[1].strip()
    facts["left"] = sorted(names() - before)
    facts["lost"] = sorted(before - names())
    facts["account_left"] = [run("getent", database, "ascendd")[0] for database in ("passwd", "group")]
    return facts


def main() -> None:
    """Write the facts, or what broke."""
    old, new, model, result = map(Path, sys.argv[1:5])
    try:
        facts = live(old, new, model)
    except Exception:
        facts = {"broken": traceback.format_exc()}
    result.write_text(json.dumps(facts, indent=1))


main()
