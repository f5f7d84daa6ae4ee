"""`ascendd instance`: make, list, change and delete the instances of this host, and show its chips."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ascendd.cli.instance_reset import reset_chips

if TYPE_CHECKING:
    from ascendd.config.schema import InstanceConfig
    from ascendd.host.files import HostFiles
    from ascendd.instances.chips import Topology

_Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the instance.")]
_Root = Annotated[str, typer.Option(metavar="DIR", help="A fake host: a folder that holds .fake-host.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    """Add the verb and its subcommands to `app`."""
    group = typer.Typer(help="Make, list, change and delete instances; show the chips.", no_args_is_help=True)
    app.add_typer(group, name="instance")
    more = {"ignore_unknown_options": True, "allow_extra_args": True}
    group.command(context_settings=more)(create)
    group.command(name="list")(list_instances)
    group.command()(edit)
    group.command()(delete)
    group.command()(topology)
    group.command(name="reset-chips")(reset_chips)


def create(  # noqa: PLR0917 - typer reads one parameter per option
    context: typer.Context,
    name: _Name,
    model: Annotated[str, typer.Option(metavar="PATH", help="Folder of the model.")],
    devices: Annotated[
        str | None, typer.Option(metavar="0-3", help="NPUs to use; default: the first free ones, near each other.")
    ] = None,
    keys: Annotated[
        bool | None,
        typer.Option("--keys/--no-keys", help="Make an API key; default: only where --host is not this machine alone."),
    ] = None,
    force: Annotated[
        bool, typer.Option(help="Write it even if plan, ports, devices or folder are in the way.")
    ] = False,
    host_root: _Root = "/",
) -> None:
    """
    Write file, key and unit drop-in of a new instance, after checking its plan; flags of `ascendd serve` are taken.

    Starts nothing: `systemctl enable --now ascendd@NAME` does.
    """
    from ascendd.cli.instance_draft import check_draft, make_draft
    from ascendd.instances.store import InstanceFiles, InstanceStore, key_path, require_new

    files = _host(host_root)
    store = InstanceStore(files)
    require_new(store, name)
    found = _topology(files)
    draft = make_draft(store, found, name, [model, *context.args], devices=devices, keys=keys)
    notes = [*draft.notes, *check_draft(files, store, found, name, draft.config, force=force)]
    store.write(name, InstanceFiles(draft.text, _drop_in(files, found, name, draft.config), draft.new_key))
    _reload(files)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    print(f"{store.path(name)} is written; start it with `systemctl enable --now ascendd@{name}`")
    if draft.new_key:
        print(f"its API key is in {key_path(name)}, readable by root and the service only")


def list_instances(*, as_json: _Json = False, host_root: _Root = "/") -> None:
    """Show every instance: state, address, devices, model."""
    from ascendd.errors import AscenddError
    from ascendd.instances.draft import devices_of
    from ascendd.instances.store import InstanceStore

    files = _host(host_root)
    store = InstanceStore(files)
    rows: list[dict[str, Any]] = []
    for name in store.names():
        row: dict[str, Any] = {"name": name, "state": _unit_state(files, name)}
        try:
            config = _load(store.read(name), name)
        except AscenddError as error:
            row["problem"] = error.message
        else:
            row |= {
                "address": f"{config.listen.host}:{config.listen.port}",
                "devices": devices_of(config) if config.engine.device != "cpu" else [],
                "device": config.engine.device,
                "model": config.model.path,
            }
        rows.append(row)
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    if not rows:
        print("there is no instance; make one with `ascendd instance create NAME --model PATH`")
    for row in rows:
        if "problem" in row:
            print(f"{row['name']:16}  {row['state']:10}  {row['problem'].splitlines()[0]}")
            continue
        chips = ",".join(map(str, row["devices"])) if row["device"] != "cpu" else "-"
        print(f"{row['name']:16}  {row['state']:10}  {row['address']:21}  {row['device']} {chips:8}  {row['model']}")


def edit(
    name: _Name,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Take this file instead of an editor; - is stdin.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Write it even if plan, ports or devices are in the way.")] = False,
    host_root: _Root = "/",
) -> None:
    """Change an instance's file in $EDITOR; it is checked first, and what is wrong never takes the old one's place."""
    from ascendd.cli.instance_draft import check_draft, edited_text
    from ascendd.instances.store import InstanceFiles, InstanceStore

    files = _host(host_root)
    store = InstanceStore(files)
    old = store.read(name)
    text = edited_text(old, name, source)
    if text == old:
        print(f"{store.path(name)} stays as it is")
        return
    config = _load(text, f"the new file of {name}")
    found = _topology(files)
    notes = check_draft(files, store, found, name, config, force=force)
    store.write(name, InstanceFiles(text, _drop_in(files, found, name, config)))
    _reload(files)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    print(f"{store.path(name)} is written; `systemctl restart ascendd@{name}` puts it into use")


def delete(
    name: _Name,
    stop: Annotated[bool, typer.Option(help="Stop and disable the unit first.")] = False,
    host_root: _Root = "/",
) -> None:
    """Delete an instance: its file, key and drop-in. The model and the logs stay."""
    from ascendd.errors import HostError
    from ascendd.instances.store import InstanceStore

    files = _host(host_root)
    store = InstanceStore(files)
    store.read(name)
    if _unit_state(files, name) in ("active", "activating", "reloading", "deactivating") and not stop:
        raise HostError(
            f"ascendd@{name} is running, so its files are not deleted",
            remedy=f"Add --stop, or run `systemctl stop ascendd@{name}` first.",
        )
    if stop:
        _systemctl(files, "stop", f"ascendd@{name}.service", limit_s=600.0)
    _systemctl(files, "disable", "--quiet", f"ascendd@{name}.service")
    for path in store.delete(name):
        print(f"removed {path}")
    _reload(files)


def topology(*, as_json: _Json = False, host_root: _Root = "/") -> None:
    """Show the NPUs of this host: number, bus, memory, CPUs and NUMA node near, links, and which instance has each."""
    from ascendd.cli.instance_draft import describe_topology
    from ascendd.instances.draft import read_others, users_of
    from ascendd.instances.store import InstanceStore

    files = _host(host_root)
    found = _topology(files)
    users = users_of([chip.number for chip in found.chips], read_others(InstanceStore(files)))
    data, lines = describe_topology(found, users)
    print(json.dumps(data, indent=2) if as_json else "\n".join(lines))


def _host(root: str) -> HostFiles:
    from ascendd.host.fake_host import require_fake_host
    from ascendd.host.files import HostFiles

    return HostFiles(require_fake_host(root))


def _topology(files: HostFiles) -> Topology:
    from ascendd.instances.chips import read_topology

    return read_topology(files, os.environ)


def _load(text: str, origin: str) -> InstanceConfig:
    from ascendd.config.load import load_text

    return load_text(text, origin)


def _drop_in(files: HostFiles, found: Topology, name: str, config: InstanceConfig) -> str:
    """Return the drop-in: the chips of an NPU instance, no device at all for one on the CPU."""
    from dataclasses import replace

    from ascendd.host.drop_in import Placement, drop_in_text, find_placement
    from ascendd.instances.draft import devices_of

    if not found.chips or config.engine.device == "cpu":
        return drop_in_text(name, Placement())
    chips = found.by_number(devices_of(config))
    placement = find_placement(files, {chip.node: chip.bus_id for chip in chips})
    # The runtime counts devices, while nodes are numbered by the driver; they differ on hosts with PCIe cards.
    return drop_in_text(name, replace(placement, devices=tuple(chip.number for chip in chips)))


def _unit_state(files: HostFiles, name: str) -> str:
    return _systemctl(files, "is-active", f"ascendd@{name}.service").strip() or "unknown"


def _reload(files: HostFiles) -> None:
    _systemctl(files, "daemon-reload")


def _systemctl(files: HostFiles, *words: str, limit_s: float = 60.0) -> str:
    """Ask the host's systemd; nothing where it does not run, and never that of the machine around a fake host."""
    from ascendd.host.command import run_command

    if files.root or not files.is_dir("/run/systemd/system"):
        return ""
    return run_command(["systemctl", *words], limit_s, os.environ).stdout
