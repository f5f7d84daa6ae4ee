"""
Runs as root inside a throw-away machine with a real systemd: the gateway's unit loads and unloads a real instance.

    gateway_driver.py REPOSITORY BIN_FOLDER RESULT_FILE

As systemd_driver.py, whose installation it uses; RESULT_FILE gets the facts as JSON, nothing is judged here.
"""

from __future__ import annotations

import http.client
import json
import shutil
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from systemd_driver import install
from systemd_machine import PORT, UNIT, run, show, state, wait

GATEWAY = "ascendd-gateway.service"
GATEWAY_PORT = 8080
RULES = Path("/etc/polkit-1/rules.d")
IDLE_S = 4
FILE = f"""
on_demand_memory: 2GiB
instances:
  - name: qwen2
    url: http://127.0.0.1:{PORT}
    on_demand: {{unit: ascendd@qwen2, idle_s: {IDLE_S}, load_s: 9, memory: 1GiB}}
  - name: other
    url: http://127.0.0.1:9999
"""


def ask(path: str, body: Any = None) -> dict[str, Any]:
    """Ask the gateway; status 0 where it does not answer."""
    connection = http.client.HTTPConnection("127.0.0.1", GATEWAY_PORT, timeout=60)
    try:
        data = None if body is None else json.dumps(body)
        connection.request("GET" if data is None else "POST", path, data)
        response = connection.getresponse()
        return {
            "status": response.status,
            "retry_after": response.headers.get("Retry-After"),
            "json": json.loads(response.read()),
        }
    except OSError:
        return {"status": 0}
    finally:
        connection.close()


def complete() -> dict[str, Any]:
    """Ask for two tokens of the instance that is loaded on demand."""
    return ask("/v1/completions", {"model": "qwen2", "prompt": "hello", "max_tokens": 2})


def events(name: str) -> list[dict[str, Any]]:
    """Return the gateway's log lines of one event, from the journal."""
    lines = run("journalctl", "-u", GATEWAY, "-o", "cat", "--no-pager").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{") and f'"{name}"' in line]


def as_service(*argv: str) -> str:
    """Run a command as the gateway's user and return what it prints."""
    return run("setpriv", "--reuid=ascendd", "--regid=ascendd", "--init-groups", *argv)


def set_up(repository: Path, bin_folder: Path) -> dict[str, Any]:
    """Install the units and start the gateway; the instance is not running."""
    facts = install(repository, bin_folder)
    private = ("/tmp", "/var/tmp")
    below_tmp = [folder for folder in (repository, bin_folder.parent) if any(map(folder.is_relative_to, private))]
    drop_in = Path(f"/etc/systemd/system/{GATEWAY}.d")
    drop_in.mkdir()
    bind = "".join(f"BindReadOnlyPaths={folder}\n" for folder in below_tmp)
    (drop_in / "lab.conf").write_text(f"[Service]\nProtectHome=read-only\n{bind}")
    file = Path("/etc/ascendd/gateway.yaml")
    file.write_text(FILE)
    shutil.chown(file, "root", "ascendd")
    run("systemctl", "daemon-reload")
    started = run("systemctl", "start", GATEWAY)
    return {
        "sysusers": facts["sysusers"],
        "verify": [line for line in run("systemd-analyze", "verify", GATEWAY).splitlines() if "ascendd" in line],
        "started": started,
        "state": state(GATEWAY),
        "status_text": show(GATEWAY, "StatusText").get("StatusText"),
        "exposure": run("systemd-analyze", "security", GATEWAY, "--no-pager").splitlines()[-1],
        "readyz": ask("/readyz"),
    }


def not_allowed() -> dict[str, Any]:
    """Ask before polkit has the rule."""
    first = complete()
    wait(lambda: events("gateway.load_failed"), "the failure of a start that is not allowed")
    return {"first": first, "failed": events("gateway.load_failed")[0], "then": complete(), "instance": state()}


def loaded_and_unloaded(repository: Path) -> dict[str, Any]:
    """Copy the rule and ask until there is an answer; then leave it alone until it is stopped."""
    shutil.copy(repository / "packaging/polkit/50-ascendd-gateway.rules", RULES)
    run("systemctl", "restart", GATEWAY)  # it would not try again for 30 s
    wait(lambda: ask("/livez")["status"] == 200, "the gateway after its restart")
    statuses: list[tuple[int, str | None]] = []
    began = time.monotonic()
    answer: dict[str, Any] = {}

    def answered() -> bool:
        answer.update(complete())
        code = None if answer["status"] == 200 else answer["json"]["error"]["code"]
        if (answer["status"], code) not in statuses:
            statuses.append((answer["status"], code))
        return answer["status"] == 200

    wait(answered, "an answer of the instance that was loaded")
    loaded_s = time.monotonic() - began
    serving = state()
    wait(lambda: state() == "inactive", "the stop of the idle instance")
    idle = {"events": events("gateway.idle"), "state": state(), **show(UNIT, "Result", "ExecMainStatus")}
    again = complete()
    wait(answered, "an answer after the second load")
    return {
        "statuses": statuses,
        "loaded_s": loaded_s,
        "serving": serving,
        "text": answer["json"]["choices"][0]["text"],
        "idle": idle,
        "again": again,
        "loads": len(events("gateway.loaded")),
    }


def forbidden() -> dict[str, Any]:
    """Try as the gateway's user what the rule does not say."""
    tries = {
        "another unit": ("systemctl", "--no-ask-password", "stop", "systemd-journald.service"),
        "another verb": ("systemctl", "--no-ask-password", "restart", UNIT),
        "unit files": ("systemctl", "--no-ask-password", "enable", UNIT),
    }
    return {what: as_service(*argv) for what, argv in tries.items()}


def main(repository: str, bin_folder: str, result: str) -> int:
    """Collect all facts; what breaks is a fact, too."""
    facts: dict[str, Any] = {"has_polkit": RULES.is_dir()}
    try:
        facts["set_up"] = set_up(Path(repository), Path(bin_folder))
        facts["not_allowed"] = not_allowed()
        if facts["has_polkit"]:
            facts["on_demand"] = loaded_and_unloaded(Path(repository))
            facts["forbidden"] = forbidden()
        run("systemctl", "stop", GATEWAY)
        facts["stopped"] = {"state": state(GATEWAY), **show(GATEWAY, "Result", "ExecMainStatus")}
    except Exception:
        units = ("-u", GATEWAY, "-u", UNIT, "-u", "polkit")
        facts["broken"] = traceback.format_exc() + run("journalctl", *units, "-n", "60", "-o", "cat", "--no-pager")
    Path(result).write_text(json.dumps(facts, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
