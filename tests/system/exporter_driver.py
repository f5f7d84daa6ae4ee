"""The exporter's unit in the throw-away machine with eight NPUs: beside serving, after it, and beside Huawei's own."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from systemd_machine import UNIT, run, show, wait

EXPORTER = "ascendd-exporter.service"
PAGE = "http://127.0.0.1:9476/metrics"
_NAMES = (
    "npu_chip_info_name", "npu_chip_info_health_status", "npu_chip_info_power", "npu_chip_info_temperature",
    "npu_chip_info_utilization", "npu_chip_info_hbm_used_memory", "npu_chip_info_hbm_total_memory",
    "ascendd_chip_healthy", "ascendd_chip_power_watts", "ascendd_chip_memory_bytes",
)  # fmt: skip


def _page() -> str:
    time.sleep(0.5)  # more than ten scrapes a second are refused
    with contextlib.suppress(OSError), urllib.request.urlopen(PAGE, timeout=60) as answer:
        return str(answer.read().decode())
    return ""


def _series(page: str, start: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith(start)]


def _seen(condition: Any, what: str) -> str:
    """Return the first page for which `condition` holds."""
    pages: list[str] = []

    def holds() -> bool:
        pages.append(_page())
        return bool(pages[-1]) and bool(condition(pages[-1]))

    wait(holds, what)
    return pages[-1]


def exporter() -> dict[str, Any]:
    """Start it while the instance serves, stop the instance, and let a process of the name npu-exporter come and go."""
    units = Path("/etc/systemd/system")
    lab = (units / "ascendd@.service.d/lab.conf").read_text().splitlines()
    kept = [line for line in lab if line.startswith(("[", "ProtectHome", "BindReadOnlyPaths"))]
    folder = units / f"{EXPORTER}.d"
    folder.mkdir()
    (folder / "lab.conf").write_text("\n".join([*kept, 'Environment="ASCENDD_EXPORTER_OPTIONS=--interval 1"', ""]))
    run("systemctl", "daemon-reload")
    verify = run("systemd-analyze", "verify", EXPORTER)
    said = run("systemctl", "start", EXPORTER)
    serving = _seen(lambda page: _series(page, "npu_chip_info_power{"), "chips on the exporter's page")
    pid = show(EXPORTER, "MainPID")["MainPID"]
    user = run("ps", "-o", "user=", "-p", pid).strip()
    security = run("systemd-analyze", "security", EXPORTER, "--no-pager").splitlines()[-1]

    run("systemctl", "stop", UNIT)
    listens = 'ascendd_instance_listening{name="qwen2"} 1.0'
    alone = _seen(lambda page: listens not in page, "the end of the instance on the page")
    after = show(EXPORTER, "ActiveState", "MainPID", "NRestarts")

    theirs = Path("/usr/local/bin/npu-exporter")
    shutil.copy("/bin/sleep", theirs)
    other = subprocess.Popen([theirs, "3600"])
    aside = _seen(lambda page: not _series(page, "npu_chip_info_"), "their names gone beside their own exporter")
    other.kill()
    other.wait()
    back = _seen(lambda page: _series(page, "npu_chip_info_power{"), "their names back")

    run("systemctl", "stop", EXPORTER)
    return {
        "verify": [line for line in verify.splitlines() if "ascendd" in line],
        "said": said,
        "exposure": security,
        "user": user,
        "serving": {
            "listens": listens in serving,
            "chips": _series(serving, "ascendd_chips "),
            "machine": _series(serving, "machine_npu_nums "),
            "age": _series(serving, "ascendd_snapshot_age_seconds "),
            **{name: len(_series(serving, f"{name}{{")) for name in _NAMES},
        },
        "alone": {"pid": pid == after.pop("MainPID"), **after, "chips": len(_series(alone, "npu_chip_info_power{"))},
        "aside": {
            "theirs": len(_series(aside, "npu_chip_info_")),
            "ours": len(_series(aside, "ascendd_chip_power_watts{")),
        },
        "back": len(_series(back, "npu_chip_info_power{")),
        "stopped": show(EXPORTER, "ActiveState", "Result", "ExecMainStatus"),
    }
