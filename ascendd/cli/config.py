"""`ascendd config`: check, show and describe instance files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ascendd.config.schema import InstanceConfig

_File = Annotated[Path, typer.Argument(metavar="FILE", help="An instance file, or the name of an instance.")]


def register(app: typer.Typer) -> None:
    """Add the verb and its subcommands to `app`."""
    group = typer.Typer(help="Check, show and describe instance files.", no_args_is_help=False)
    app.add_typer(group, name="config")

    @group.command()
    def check(file: _File) -> None:
        """List every problem of an instance file; exit 78 if there is one."""
        path = instance_path(file)
        _load(path)
        print(f"{path}: no problems")

    @group.command()
    def show(
        file: _File,
        resolved: Annotated[
            bool, typer.Option("--resolved", help="Show the numbers the engine would run with, and where each is from.")
        ] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Write JSON instead of YAML.")] = False,
    ) -> None:
        """Print an instance file with every default filled in."""
        config = _load(instance_path(file))
        data = resolved_view(config) if resolved else plain(config)
        if as_json:
            print(json.dumps(data, indent=2))
        elif resolved:
            _print_resolved(data)
        else:
            import yaml

            print(yaml.safe_dump(data, sort_keys=False), end="")

    @group.command()
    def schema() -> None:
        """Print the JSON schema of instance files."""
        print(schema_text(), end="")


def instance_path(file: Path) -> Path:
    """Return the file itself, or that of the instance named so."""
    from ascendd.config.load import INSTANCES_DIR

    is_name = len(file.parts) == 1 and not file.suffix and not file.exists()
    return INSTANCES_DIR / f"{file}.yaml" if is_name else file


def plain(config: InstanceConfig) -> dict[str, Any]:
    """Return `config` as plain data, every default filled in."""
    import msgspec

    data: dict[str, Any] = msgspec.to_builtins(config)
    return data


def schema_text() -> str:
    """Return the JSON schema of InstanceConfig, as packaging/schema.json has it."""
    import msgspec

    from ascendd.config.schema import InstanceConfig

    return json.dumps(msgspec.json.schema(InstanceConfig), indent=2, sort_keys=True) + "\n"


def resolved_view(config: InstanceConfig) -> dict[str, dict[str, Any]]:
    """Return every number of the engine with its origin; asks the device, so it needs the machine that will serve."""
    import msgspec

    from ascendd.config.model_facts import read_model_facts
    from ascendd.config.resolve import resolve
    from ascendd.device.detect import make_device

    facts = read_model_facts(Path(config.model.path))
    engine = resolve(config, facts, make_device(config.engine.device).facts)
    values = msgspec.to_builtins(engine)
    origins = values.pop("origins")
    values.pop("plan")
    written = plain(config)["model"] | plain(config)["engine"] | plain(config)["parallel"]
    return {
        key: {"value": value, "origin": origins.get(key, "file" if written.get(key) == value else "derived")}
        for key, value in values.items()
    }


def _print_resolved(view: dict[str, dict[str, Any]]) -> None:
    width = max(map(len, view))
    for key, entry in view.items():
        print(f"{key:{width}}  {entry['value']!s:24}  {entry['origin']}")


def _load(path: Path) -> InstanceConfig:
    from ascendd.config.load import load_file

    return load_file(path)
