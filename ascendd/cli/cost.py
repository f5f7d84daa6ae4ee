"""`ascendd cost INSTANCE`: what a million tokens cost, and what they would with other settings."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def register(app: typer.Typer) -> None:
    """Add the verb to `app`."""

    @app.command()
    def cost(
        instance: Annotated[str, typer.Argument(metavar="INSTANCE", help="A running instance with a price.")],
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ) -> None:
        """Show what a million tokens of each model cost in the last hour, with a table of what else they could cost."""
        from ascendd.cli.control_client import order

        order(instance, {"verb": "cost"}, render, as_json=as_json)


def render(facts: dict[str, Any]) -> str:
    """Return the lines that people read."""
    money = facts["currency"]
    lines = [
        f"{facts['power_w']:g} W ({facts['power_source']}), {facts['cost_per_hour']:.4f} {money} an hour, of them "
        f"{facts['hardware_per_hour']:.4f} for the hardware; {facts['cost_total']:.4f} {money} since the start",
        f"the last {facts['window_s'] / 60:.0f} min:",
    ]
    for row in facts["models"]:
        price = row["cost_per_million_tokens"]
        told = "nothing generated" if price is None else f"{price:.4f} {money} a million generated tokens"
        lines.append(
            f"  {row['model']}: {row['prompt_tokens']} prompt tokens computed, {row['generated_tokens']} generated: "
            + told
        )
    if not facts["models"]:
        lines.append("  no request has ended")
    if facts["what_if"]:
        lines.append(f"what a million generated tokens of all models would cost in {money}:")
        width = max(len(row["what"]) for row in facts["what_if"])
        lines += [f"  {r['what']:<{width}}  {r['cost_per_million']:>12.4f}  {r['basis']}" for r in facts["what_if"]]
    return "\n".join(lines)
