"""`ascendd release`: the releases on this host, and going to another one without losing a request."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    release = typer.Typer(help="List releases, use another one, go back.", no_args_is_help=True)

    @release.command(name="list")
    def list_releases(*, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
        """Show every installed release, the current one marked."""
        from ascendd.installer.host import Host
        from ascendd.installer.releases import Releases, show

        rows = show(Releases(Host()))
        if as_json:
            import msgspec

            data = [{"version": version, "state": mark or None, "python": python} for version, mark, python in rows]
            sys.stdout.write(msgspec.json.format(msgspec.json.encode(data), indent=2).decode() + "\n")
            return
        if not rows:
            print("no release is installed below /opt/ascendd")
        for version, mark, python in rows:
            print(f"{version:<16}  {mark:<8}  {python}".rstrip())

    @release.command()
    def use(version: Annotated[str, typer.Argument(help="An installed version.")]) -> None:
        """Make a release current; running instances restart one after another, each once the last is ready."""
        from ascendd.installer.host import Host
        from ascendd.installer.releases import Releases

        _need_root()
        Releases(Host()).use(version)
        print(f"release {version} is current")

    @release.command()
    def rollback() -> None:
        """Go back to the release before the current one."""
        from ascendd.installer.host import Host
        from ascendd.installer.releases import Releases

        _need_root()
        print(f"release {Releases(Host()).roll_back()} is current")

    app.add_typer(release, name="release")


def _need_root() -> None:
    from ascendd.errors import PermissionMissing

    if os.geteuid() != 0:
        raise PermissionMissing("a release is changed by root only", remedy="Run the same command with sudo.")
