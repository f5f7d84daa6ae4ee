"""`ascendd loglevel INSTANCE LEVEL`: more or fewer lines from a running instance."""

from __future__ import annotations

from typing import Annotated

import typer

_Name = Annotated[str, typer.Argument(metavar="INSTANCE", help="Name of the instance.")]


def register(app: typer.Typer) -> None:
    """Add the verb to `app`."""

    @app.command()
    def loglevel(
        instance: _Name,
        level: Annotated[str, typer.Argument(help="debug, info, warning or error.")],
        as_json: Annotated[bool, typer.Option("--json", help="Print the answer as one JSON object.")] = False,
    ) -> None:
        """Change the log level of a running instance until its next start or reload."""
        from ascendd.cli.control_client import order

        order(instance, {"verb": "log-level", "level": level}, lambda reply: f"level {reply['level']}", as_json=as_json)
