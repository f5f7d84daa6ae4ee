"""`ascendd reload INSTANCE`: what may change of the instance file, taken up while it runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

_Name = Annotated[str, typer.Argument(metavar="INSTANCE", help="Name of the instance.")]


def register(app: typer.Typer) -> None:
    """Add the verb to `app`."""

    @app.command()
    def reload(
        instance: _Name,
        as_json: Annotated[bool, typer.Option("--json", help="Print the answer as one JSON object.")] = False,
    ) -> None:
        """Take up what may change of the instance file and the key file, as `systemctl reload` does."""
        from ascendd.cli.control_client import order

        order(instance, {"verb": "reload"}, _text, as_json=as_json)


def _text(reply: dict[str, Any]) -> str:
    lines = [f"taken up: {', '.join(reply['applied']) or 'no changed key'}; keys and log files were opened anew"]
    if reply["needs_restart"]:
        lines.append(f"needs a restart: {', '.join(reply['needs_restart'])}")
    return "\n".join(lines)
