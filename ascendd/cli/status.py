"""`ascendd status [INSTANCE]`: what runs, how much memory it takes, what it works on and what went wrong last."""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone
from typing import Annotated, Any

import typer


def register(app: typer.Typer) -> None:
    """Add the verb to `app`."""

    @app.command()
    def status(
        instance: Annotated[str | None, typer.Argument(metavar="[INSTANCE]", help="One; without it all.")] = None,
        watch: Annotated[bool, typer.Option("--watch", help="Again every second until Ctrl-C.")] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list, one object an instance.")] = False,
    ) -> None:
        """Show running instances: processes, memory, queue, KV cache, the last incident, the doctor's verdict."""
        from ascendd.cli.control_client import ask, ask_all

        while True:
            request = {"verb": "status"}
            found = ask_all(request) if instance is None else [ask(instance, request)]
            if as_json:
                print(json.dumps(found), flush=True)
            else:
                clear = "\x1b[2J\x1b[H" if watch else ""
                text = "\n\n".join(map(render, found)) or "no instance runs that this user may ask"
                print(clear + text, flush=True)
            if not watch:
                break
            time.sleep(1.0)


def render(facts: dict[str, Any]) -> str:
    """Return the lines that people read of one instance."""
    held = " (held: no new requests)" if facts["held"] else ""
    load = facts["load"]
    doctor = facts["doctor"]
    checks = f" ({', '.join(doctor['checks'])})" if doctor.get("checks") else ""
    lines = [
        f"{facts['instance']}: {facts['phase']}{held}, {facts['text']}",
        f"  model    {facts['model']} on {facts['address']}, up {_span(facts['uptime_s'])}, ascendd {facts['version']}",
        f"  load     {load['running']} running, {load['waiting']} waiting, KV cache {load['kv_usage'] * 100:.0f} %",
        f"  doctor   {doctor['verdict']}{checks}",
        f"  incident {_incident(facts['last_incident'])}",
    ]
    if facts["degraded"]:
        lines.append(f"  degraded {facts['degraded']}")
    reload = facts["last_reload"] or {}
    if reload.get("needs_restart"):
        lines.append(f"  restart  needed for {', '.join(reload['needs_restart'])}")
    if reload.get("error"):
        lines.append(f"  reload   failed: {reload['code']} {reload['error']}")
    lines.append(f"  {'process':<11} {'state':<9} {'pid':>8} {'memory':>10} {'starts':>6}  since")
    for row in facts["processes"]:
        memory = f"{row['rss_bytes'] / 2**20:.0f} MiB" if "rss_bytes" in row else "-"
        since = _span(row["since_s"]) if row.get("since_s") is not None else "-"
        starts = row.get("num_starts", "-")
        if row["role"].startswith("rank "):
            since = f"{row['doing']} at step {row['step']}, heard {row['silent_s']:.0f} s ago"
        lines.append(f"  {row['role']:<11} {row['state']:<9} {row['pid'] or '-':>8} {memory:>10} {starts:>6}  {since}")
    return "\n".join(lines)


def _incident(incident: dict[str, Any] | None) -> str:
    if incident is None:
        return "none since the start"
    at = datetime.fromtimestamp(incident["unix_s"], timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"{at}: {incident['reason']} (episode {incident['episode']})"


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
