"""`ascendd gateway`: one entry for several instances, in the foreground; what ascendd-gateway.service starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the verb to `app`."""

    @app.command()
    def gateway(
        config: Annotated[Path, typer.Option("--config", "-c", help="Its file.")] = Path("/etc/ascendd/gateway.yaml"),
        check: Annotated[bool, typer.Option("--check", help="List every problem of the file and leave.")] = False,
    ) -> None:
        """Route requests to several instances by rules; systemctl start ascendd-gateway does the same."""
        if check:
            from ascendd.gateway.dispatcher import Dispatcher
            from ascendd.gateway.schema import load_gateway

            Dispatcher(load_gateway(config))  # reads the key files, too
            print(f"{config}: no problems")
            return
        from ascendd.gateway.server import run_gateway

        raise typer.Exit(run_gateway(config))
