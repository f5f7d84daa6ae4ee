"""`ascendd exporter`: the chips of this host at /metrics, without an instance; what ascendd-exporter.service starts."""

from __future__ import annotations

import os
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the verb to `app`."""

    @app.command()
    def exporter(  # noqa: PLR0917 - typer reads one parameter per option
        host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
        port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="Its port.")] = 9476,
        interval: Annotated[
            float, typer.Option(metavar="SECONDS", min=1, max=60, help="From one reading of npu-smi to the next.")
        ] = 15.0,
        npu_names: Annotated[
            str,
            typer.Option(metavar="WHEN", help="npu-exporter's names too: auto (while it does not run), always, never."),
        ] = "auto",
        max_scrapes: Annotated[
            float, typer.Option(metavar="N", min=1, max=1000, help="Scrapes a second; more are answered 429.")
        ] = 10.0,
        once: Annotated[bool, typer.Option("--once", help="Print the page of one reading and leave.")] = False,
    ) -> None:
        """Show the chips of this host to Prometheus; systemctl start ascendd-exporter does the same."""
        from ascendd.config.schema import LogSection
        from ascendd.errors import UsageError
        from ascendd.host.files import HostFiles
        from ascendd.telemetry import log
        from ascendd.telemetry.chip_reader import ChipReader, NpuNames
        from ascendd.telemetry.host_exporter import page_once, run_exporter

        when: dict[str, NpuNames] = {"auto": "auto", "always": "always", "never": "never"}
        if npu_names not in when:
            raise UsageError(f"--npu-names {npu_names!r} is not auto, always or never")
        log.configure(LogSection(), role="exporter")
        reader = ChipReader(HostFiles(), os.environ, when[npu_names])
        if once:
            print(page_once(reader), end="")
            return
        raise typer.Exit(run_exporter(reader, host, port, interval, max_scrapes))
