"""`ascendd tune INSTANCE`: what self-tuning did and why, and what settings suit the requests that came."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Annotated, Any

import typer


def register(app: typer.Typer) -> None:
    """Add the verb to `app`."""

    @app.command()
    def tune(
        instance: Annotated[str, typer.Argument(metavar="INSTANCE", help="A running instance.")],
        explain: Annotated[bool, typer.Option("--explain", help="Only the changes of the batch and why.")] = False,
        advise: Annotated[bool, typer.Option("--advise", help="Only advice for the instance file.")] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ) -> None:
        """Show why self-tuning moved the batch, and advise block size, KV cache and context length."""
        from ascendd.cli.control_client import ask

        facts = ask(instance, {"verb": "tune"})
        if as_json:
            print(json.dumps(facts))
            return
        if explain or not advise:
            print("\n".join(explanation(facts)))
        if advise or not explain:
            print("\n".join(advice(facts)))


def explanation(facts: dict[str, Any]) -> list[str]:
    """Return what self-tuning does, and its last changes with the reason of each."""
    limits = f"up to {facts['max_num_seqs']} sequences and {facts['prefill_tokens']} prompt tokens a step"
    if not facts["enabled"]:
        return [f"self-tuning is off (tuning.enabled); the batch stays at {limits}"]
    lines = [f"self-tuning by the policy {facts['policy']}, every {facts['interval_s']:g} s; now {limits}"]
    if not facts["changes"]:
        lines.append("  no change so far: the load gave no reason, or the batch is at its bound")
    for change in facts["changes"]:
        at = datetime.fromtimestamp(change["unix_s"], timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
        lines.append(f"  {at}  {change['reason']}")
    return lines


def advice(facts: dict[str, Any]) -> list[str]:
    """Return the advice as lines of key, value now, value advised and reason."""
    if not facts["advice"]:
        return [
            f"no advice: {facts['num_requests']} requests have ended, and {facts['min_requests']} are needed to know "
            "what is usual"
        ]
    lines = [f"from the lengths of {facts['num_requests']} requests:"]
    for row in facts["advice"]:
        change = "stays" if row["now"] == row["advised"] else f"-> {row['advised']}"
        lines.append(f"  {row['key']:<22} {row['now']} {change}")
        lines.append(f"    {row['reason']}")
    lines.append("none of these changes without a restart; `ascendd plan` shows the memory of other values")
    return lines
