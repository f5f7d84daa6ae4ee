"""`ascendd restart INSTANCE`: one process of a running instance anew."""

from __future__ import annotations

from typing import Annotated, Any

import typer

_Name = Annotated[str, typer.Argument(metavar="INSTANCE", help="Name of the instance.")]


def register(app: typer.Typer) -> None:
    """Add the verb to `app`."""

    @app.command()
    def restart(
        instance: _Name,
        role: Annotated[str, typer.Option("--role", help="The process: engine, api, metrics or logwriter.")] = "engine",
        as_json: Annotated[bool, typer.Option("--json", help="Print the answer as one JSON object.")] = False,
    ) -> None:
        """Restart one process of the instance at once, without backoff; `ascendd drain` first to cut nobody off."""
        from ascendd.cli.control_client import order

        order(instance, {"verb": "restart", "role": role}, _text, as_json=as_json)


def _text(reply: dict[str, Any]) -> str:
    return f"{reply['role']} (pid {reply['pid']}) ends and is started again"
