"""`ascendd drain INSTANCE`: no new requests, while what runs is finished."""

from __future__ import annotations

from typing import Annotated, Any

import typer

_Name = Annotated[str, typer.Argument(metavar="INSTANCE", help="Name of the instance.")]


def register(app: typer.Typer) -> None:
    """Add the verb to `app`."""

    @app.command()
    def drain(
        instance: _Name,
        as_json: Annotated[bool, typer.Option("--json", help="Print the answer as one JSON object.")] = False,
    ) -> None:
        """Take no new requests; what runs is finished and the instance stays up until `ascendd resume`."""
        from ascendd.cli.control_client import order

        order(instance, {"verb": "drain"}, _text, as_json=as_json)


def _text(reply: dict[str, Any]) -> str:
    load = reply["load"]
    return f"no new requests are taken; {load['running']} run and {load['waiting']} wait to be finished"
