"""`ascendd run`: the daemon of one instance, in the foreground; what the systemd unit starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from ascendd.config.schema import InstanceConfig


def register(app: typer.Typer) -> None:
    """Add the verb to `app`."""

    @app.command()
    def run(
        instance: Annotated[str, typer.Option("--instance", "-i", help="Name of the instance.")],
        config: Annotated[
            Path | None, typer.Option("--config", "-c", help="Its file; default /etc/ascendd/instances/NAME.yaml.")
        ] = None,
    ) -> None:
        """Run one instance in the foreground; systemctl start ascendd@NAME does the same."""
        from ascendd.config.load import INSTANCES_DIR, load_file
        from ascendd.errors import UsageError

        if not instance or "/" in instance or instance.startswith("."):
            raise UsageError(
                f"--instance {instance!r} is not the name of an instance",
                remedy=f"Give the name of a file in {INSTANCES_DIR} without .yaml.",
            )
        path = config or INSTANCES_DIR / f"{instance}.yaml"
        raise typer.Exit(run_to_end(load_file(path), instance, lambda: load_file(path)))


def run_to_end(config: object, instance: str, reload: Callable[[], InstanceConfig] | None = None) -> int:
    """Run the instance, whose file `reload` reads anew; print the error of one that failed; return its exit status."""
    from ascendd.cli.app import report_error
    from ascendd.config.schema import InstanceConfig
    from ascendd.supervisor.instance import run_instance

    assert isinstance(config, InstanceConfig)
    outcome = run_instance(config, instance, reload=reload)
    if outcome.error is not None:
        report_error(outcome.error)
    return outcome.exit_code
