"""
Runs as root inside a throw-away machine with a real systemd: from a bundle to an instance that serves, as README says.

    install_driver.py BUNDLE MODEL RESULT_FILE

BUNDLE is an unpacked bundle with real wheels, MODEL a folder of weights. Nothing is judged here.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
import urllib.request
from pathlib import Path
from typing import Any

UNIT = "ascendd@qwen2.service"
ASCENDD = "/usr/local/bin/ascendd"
COUNTED = "\nvllm:request_success_total{"
INSTANCE = Path("/etc/ascendd/instances/qwen2.yaml")
KEPT = (
    "/etc/systemd",
    "/etc/sysusers.d",
    "/etc/tmpfiles.d",
    "/opt/ascendd",
    "/usr/local/bin",
    "/etc/passwd",
    "/etc/group",
)


def run(*argv: str | Path) -> tuple[int, str]:
    """Run a command; return its status and what it prints."""
    done = subprocess.run([str(part) for part in argv], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def snapshot() -> dict[str, str]:
    """Return the checksum of every file below the places that an installation changes."""
    found = {}
    for place in map(Path, KEPT):
        for path in [*place.rglob("*")] if place.is_dir() else [place]:
            if path.is_symlink():
                found[str(path)] = f"-> {path.readlink()}"
            elif path.is_file():
                found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def ask() -> dict[str, Any]:
    """Ask the instance for four tokens."""
    body = json.dumps({"model": "qwen2", "prompt": "hello", "max_tokens": 4, "ignore_eos": True}).encode()
    request = urllib.request.Request("http://127.0.0.1:8000/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        data: dict[str, Any] = json.load(answer)
    return data


def scrape() -> str:
    """Scrape until the answer is counted, which the processes tell once a second; give up after 90 s."""
    deadline = time.monotonic() + 90
    while True:
        with urllib.request.urlopen("http://127.0.0.1:9475/metrics", timeout=90) as answer:
            text: str = answer.read().decode()
        if COUNTED in text or time.monotonic() > deadline:
            return text
        time.sleep(0.2)


def live(bundle: Path, model: Path) -> dict[str, Any]:
    """Install, serve, apply once more, uninstall."""
    facts: dict[str, Any] = {}
    before = snapshot()
    install = bundle / "install.sh"
    started = time.monotonic()
    facts["apply"] = run(install, "apply", "--device", "cpu", "--yes")
    facts["apply_s"] = time.monotonic() - started
    if facts["apply"][0] != 0:
        log = Path("/var/log/ascendd-installer/install.log")
        facts["log"] = log.read_text()[-6000:] if log.exists() else ""
        return facts
    facts["verify"] = run(install, "verify", "--device", "cpu")
    facts["again"] = run(install, "apply", "--device", "cpu", "--yes")
    target = Path("/var/lib/ascendd/models/qwen2")
    facts["doctor"] = run(ASCENDD, "doctor")
    facts["convert"] = run(ASCENDD, "convert", model, target)
    facts["inspect"] = run(ASCENDD, "inspect", target, "--verify")
    create = (ASCENDD, "instance", "create", "qwen2", "--model", target)
    facts["create"] = run(*create, "--device", "cpu", "--max-num-blocks", "2048")
    # A Python of a developer's machine lies below /root, which the unit hides; one of a distribution does not.
    real_python = Path("/opt/ascendd/current/bin/python").resolve()
    if real_python.is_relative_to("/root"):
        os.chmod("/root", 0o711)
        drop_in = Path("/etc/systemd/system/ascendd@.service.d")
        drop_in.mkdir()
        (drop_in / "lab.conf").write_text("[Service]\nProtectHome=read-only\n")
        run("systemctl", "daemon-reload")
    facts["start"] = run("systemctl", "enable", "--quiet", "--now", UNIT)
    facts["active"] = run("systemctl", "is-active", UNIT)[1].strip()
    facts["journal"] = run("journalctl", "-u", UNIT, "-n", "30", "--no-pager")[1]
    facts["answer"] = ask()
    facts["metrics"] = scrape()
    facts["status"] = run(ASCENDD, "status", "--json")
    facts["uninstall"] = run(install, "uninstall", "--yes")
    facts["active_after"] = run("systemctl", "is-active", UNIT)[1].strip()
    shutil.rmtree("/etc/systemd/system/ascendd@.service.d", ignore_errors=True)
    after = snapshot()
    facts["changed"] = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
    facts["instance_stays"] = INSTANCE.exists()
    return facts


def main() -> None:
    """Write the facts, or what broke."""
    bundle, model, result = map(Path, sys.argv[1:4])
    try:
        facts = live(bundle, model)
    except Exception:
        facts = {"broken": traceback.format_exc()}
    result.write_text(json.dumps(facts, indent=1))


main()
