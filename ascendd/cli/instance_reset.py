"""`ascendd instance reset-chips NAME`: reset the faulty chips of an instance with their ring, once nobody has it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer


def reset_chips(
    instance: Annotated[str, typer.Argument(metavar="NAME", help="Name of the instance.")],
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Its file; default /etc/ascendd/instances/NAME.yaml.")
    ] = None,
    *,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only say what would be reset, and who has a chip of it.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    host_root: Annotated[
        str, typer.Option("--host-root", metavar="DIR", help="Root of the host; another is a fake host.")
    ] = "/",
) -> None:
    """Export device logs and reset faulty chips, each with its ring; refused while anything has a chip of it."""
    from ascendd.config.load import INSTANCES_DIR, load_file
    from ascendd.errors import PermissionMissing
    from ascendd.host.chip_reset import ChipReset, ResetResult
    from ascendd.host.fake_host import require_fake_host
    from ascendd.host.files import HostFiles
    from ascendd.supervisor.chip_repair import device_logs_folder
    from ascendd.supervisor.devices import npu_devices

    files = HostFiles(require_fake_host(host_root))
    loaded = load_file(config or INSTANCES_DIR / f"{instance}.yaml")
    devices = _in_use(instance, frozenset(npu_devices(loaded, os.environ)))
    logs = Path("/var/log/ascendd")
    own = {"LOGS_DIRECTORY": str(logs)} if not files.root and os.geteuid() == 0 and logs.is_dir() else {}
    folder = device_logs_folder(instance, {**own, **os.environ})
    work = ChipReset(folder, files, files.environ(os.environ))
    if plan:
        found = work.plan(devices)
        said: dict[str, Any] = {
            "reset": [found.chips[number].label for number in sorted(found.wanted)],
            "ring": list(found.labels),
            "holders": list(found.holders),
        }
        print(json.dumps(said) if as_json else _lines(said))
        return
    if not loaded.recovery.reset_chips:
        raise PermissionMissing(
            f"no chip of {instance} is reset: recovery.reset_chips is false in its file",
            remedy="Write `recovery: {reset_chips: true}` there; --plan shows what a reset would take along.",
        )
    if not files.root and os.geteuid() != 0:
        raise PermissionMissing("npu-smi resets chips for root only", remedy="Run the same command with sudo.")
    outcome = work.reset(devices)
    _give(outcome.logs, folder)
    if as_json:
        result = outcome.result.name.lower()
        print(json.dumps({"result": result, "text": outcome.text, "ring": outcome.ring, "logs": outcome.logs}))
    else:
        print(outcome.text)
    if outcome.result is not ResetResult.DONE:
        raise typer.Exit(outcome.result.value)


def _in_use(instance: str, devices: frozenset[int]) -> frozenset[int]:
    """Return those of `devices` that a running instance still has; a chip that it left out for good is not reset."""
    from ascendd.cli.control_client import ask
    from ascendd.errors import AscenddError

    try:
        answer = ask(instance, {"verb": "status"})
    except AscenddError:  # it does not run, or is older
        return devices
    return devices.intersection(answer.get("devices", ())) or devices


def _lines(said: dict[str, Any]) -> str:
    held = said["holders"] or ["nobody has a chip of it"]
    return "\n".join(
        [
            "would reset " + ", ".join(said["reset"]),
            "together with  " + ", ".join(said["ring"]),
            *(f"  {who}" for who in held),
        ]
    )


def _give(logs: str | None, folder: Path) -> None:
    """Give exported logs to whoever owns the logs of the instance, who keeps them within log.budget."""
    if logs is None or os.geteuid() != 0:
        return
    owned = next((path for path in folder.parents if path.exists() and path.stat().st_uid != 0), None)
    if owned is None:
        return
    owner = owned.stat()
    for path in [folder, Path(logs), *Path(logs).rglob("*")]:
        if not path.is_symlink():
            shutil.chown(path, owner.st_uid, owner.st_gid)
