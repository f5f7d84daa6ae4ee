"""`ascendd report [INSTANCE]`: the incident bundles that an instance pinned when one of its processes ended unasked."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import typer


def register(app: typer.Typer) -> None:
    """Add the verb to `app`."""

    @app.command()
    def report(
        instance: Annotated[str | None, typer.Argument(metavar="[INSTANCE]", help="One; without it all.")] = None,
        last: Annotated[bool, typer.Option("--last", help="Show the newest bundle instead of the list.")] = False,
        every: Annotated[
            bool, typer.Option("--list", help="List the bundles, the oldest first (the default).")
        ] = False,
        brief: Annotated[
            bool, typer.Option("--brief", help="One line: the last cause and the path of its bundle.")
        ] = False,
        as_json: Annotated[
            bool, typer.Option("--json", help="Print JSON: the list, or with --last the bundle.")
        ] = False,
    ) -> None:
        """List the incidents that were pinned, or show the last one: its end, fault, last lines, memory, versions."""
        from ascendd.errors import UsageError

        if last + every + brief > 1:
            raise UsageError("--last, --list and --brief exclude each other", remedy="Give one of them.")
        found = find(instance)
        if brief:
            print(brief_line(instance, found[-1] if found else None, os.environ))
        elif last:
            if not found:
                raise UsageError("no incident was pinned", remedy="`ascendd status` shows what runs.")
            path, bundle = found[-1]
            print(json.dumps({"path": str(path), **bundle}) if as_json else render(path, bundle))
        elif as_json:
            print(json.dumps([{"path": str(path), **_summary(bundle)} for path, bundle in found]))
        else:
            print("\n".join(_line(path, bundle) for path, bundle in found) or "no incident was pinned")


def find(instance: str | None) -> list[tuple[Path, dict[str, Any]]]:
    """Return path and content of each bundle, of `instance` or of all, the oldest first. Raises PermissionMissing."""
    from ascendd.errors import PermissionMissing
    from ascendd.ipc.control_path import all_incidents

    found = []
    try:
        for folder in all_incidents(os.environ):
            for path in folder.glob("*.json"):
                try:
                    bundle = json.loads(path.read_text(encoding="utf-8"))
                except ValueError:
                    continue  # not one of ours
                if instance in (None, bundle["instance"]):
                    found.append((path, bundle))
    except PermissionError as error:
        raise PermissionMissing(
            f"{error.filename} cannot be read", remedy="Ask as root (sudo) or as a member of the service's group."
        ) from error
    return sorted(found, key=lambda item: float(item[1]["incident"]["unix_s"]))


def render(path: Path, bundle: dict[str, Any]) -> str:
    """Return a bundle as people read it."""
    fault = bundle["fault"]
    lines = [_line(path, bundle)]
    if fault is not None:
        lines += [f"  fault    {fault['code']} {fault['message']}", f"  remedy   {fault['remedy']}"]
        lines += [f"    {line}" for line in fault["traceback_text"].splitlines()]
    lines.append("  versions " + ", ".join(f"{name} {version}" for name, version in bundle["versions"].items()))
    lines += [f"  kernel   {line}" for line in bundle["kernel_faults"]]
    if bundle["memory_curve"]:
        for role in sorted(set().union(*bundle["memory_curve"]) - {"unix_s"}):
            seen = [(point["unix_s"], point[role] / 2**20) for point in bundle["memory_curve"] if role in point]
            grown = f"{seen[0][1]:.0f} -> {seen[-1][1]:.0f} MiB, at most {max(mib for _, mib in seen):.0f}"
            lines.append(f"  memory   {role} {grown} over {seen[-1][0] - seen[0][0]:.0f} s")
    for role, stacks in bundle.get("stacks", {}).items():
        lines.append(f"  stacks of {role}:")
        lines += [f"    {line}" for line in stacks]
    for role, said in bundle["lines"].items():
        lines.append(f"  last lines of {role}:")
        lines += [f"    {line}" for line in said[-40:]]
    return "\n".join(lines)


def brief_line(instance: str | None, newest: tuple[Path, dict[str, Any]] | None, environ: Mapping[str, str]) -> str:
    """Return the last cause of `instance` and where its bundle is; for OnFailure= also how systemd says it ended."""
    unit = environ.get("MONITOR_UNIT", "")
    how = instance or "all instances"
    if unit:
        status = f", status {environ['MONITOR_EXIT_STATUS']}" if environ.get("MONITOR_EXIT_STATUS") else ""
        how = f"{unit} failed: {environ.get('MONITOR_SERVICE_RESULT', 'unknown')}{status}"
    if newest is None:
        return f"{how}; no process of it ended unasked: the cause is in its own last lines, `journalctl -u {unit}`"
    path, bundle = newest
    fault = bundle["fault"] or {}
    remedy = f"; remedy: {fault['remedy']}" if fault.get("remedy") else ""
    return f"{how}; last cause, {_when(bundle)}: {bundle['incident']['reason']}{remedy}; incident bundle: {path}"


def _summary(bundle: dict[str, Any]) -> dict[str, Any]:
    return {"instance": bundle["instance"], **bundle["incident"]}


def _line(path: Path, bundle: dict[str, Any]) -> str:
    return f"{_when(bundle)}  {bundle['instance']}  {bundle['incident']['reason']}  {path}"


def _when(bundle: dict[str, Any]) -> str:
    return datetime.fromtimestamp(bundle["incident"]["unix_s"], timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
