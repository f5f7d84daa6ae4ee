"""`ascendd resume INSTANCE`: the end of `ascendd drain`."""

from __future__ import annotations

from typing import Annotated

import typer

_Name = Annotated[str, typer.Argument(metavar="INSTANCE", help="Name of the instance.")]


def register(app: typer.Typer) -> None:
    """Add the verb to `app`."""

    @app.command()
    def resume(
        instance: _Name,
        as_json: Annotated[bool, typer.Option("--json", help="Print the answer as one JSON object.")] = False,
    ) -> None:
        """Take requests again after `ascendd drain`."""
        from ascendd.cli.control_client import order

        order(instance, {"verb": "resume"}, lambda reply: f"{instance} takes requests", as_json=as_json)
