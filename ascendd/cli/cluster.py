"""`ascendd cluster`: this host's part in a cluster of Ray, which serves one model with vLLM."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

if TYPE_CHECKING:
    from ascendd.config.schema import InstanceConfig

_FIRST_WITH_TOKEN = (2, 52)
_INSTANCE = Annotated[str, typer.Option("--instance", "-i", help="Name of the instance.")]
_CONFIG = Annotated[
    Optional[Path],
    typer.Option("--config", "-c", help="Its file; default /etc/ascendd/instances/NAME.yaml."),
]
_WAIT = Annotated[float, typer.Option(min=0, help="Seconds to wait for the head; 0: do not wait.")]


def register(app: typer.Typer) -> None:
    """Add the verb to `app`."""
    cluster = typer.Typer(help="Join, leave and look at the hosts that serve one model together.", no_args_is_help=True)
    app.add_typer(cluster, name="cluster")

    @cluster.command()
    def node(instance: _INSTANCE, config: _CONFIG = None) -> None:
        """Be this host's node of Ray, in the foreground: what ascendd-ray@NAME.service runs."""
        told = read(instance, config)
        argv, env = node_command(told, facts_of(told))
        os.execve(argv[0], argv, env)  # noqa: S606 - systemd watches this very process

    @cluster.command()
    def join(instance: _INSTANCE, config: _CONFIG = None, wait: _WAIT = 120.0) -> None:
        """Start ascendd-ray@NAME, now and at boot, on the one interface only, and wait until this host has joined."""
        from ascendd.cli.cluster_unit import join_host

        join_host(instance, read(instance, config), wait)

    @cluster.command()
    def leave(instance: _INSTANCE, config: _CONFIG = None, wait: _WAIT = 120.0) -> None:
        """
        Stop ascendd-ray@NAME, now and at boot, and wait until the head knows that this host is gone.

        What the instance serves over this host ends; `ascendd drain` on the head lets it finish first.
        """
        from ascendd.cli.cluster_unit import leave_host

        leave_host(instance, read(instance, config), wait)

    @cluster.command()
    def status(
        instance: _INSTANCE,
        config: _CONFIG = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ) -> None:
        """Show which hosts have joined; exit status 0 with all of them, 1 with fewer."""
        raise typer.Exit(show(read(instance, config), as_json=as_json))


def read(instance: str, path: Path | None) -> InstanceConfig:
    """Return the instance's configuration. Raises ConfigError where it has no cluster."""
    from ascendd.config.load import load_file
    from ascendd.errors import ConfigInvalid
    from ascendd.vllm.ray_node import with_token

    place = path or Path(f"/etc/ascendd/instances/{instance}.yaml")
    config = load_file(place)
    if config.cluster is None:
        remedy = "Add cluster: with head, address, interface and nodes, on every host."
        raise ConfigInvalid(f"{place} has no cluster: this instance serves on one host", remedy=remedy)
    return with_token(config, instance, os.environ)


def facts_of(config: InstanceConfig) -> dict[str, str]:
    """Return what this host tells the others of itself."""
    from ascendd.host.cluster_facts import gather_facts
    from ascendd.host.command import run_command
    from ascendd.host.files import HostFiles

    assert config.engine.vllm is not None  # held by config.validate
    return gather_facts(HostFiles(), run_command, os.environ, config.engine.vllm.venv, config.model.path)


def node_command(config: InstanceConfig, facts: dict[str, str] | None = None) -> tuple[list[str], dict[str, str]]:
    """Return what is executed to join. Raises ConfigInvalid where Ray or the token is not there."""
    from ascendd.errors import ConfigInvalid
    from ascendd.vllm.ray_node import start_command

    kind = config.engine.device
    argv, env = start_command(config, kind, os.environ, facts)
    if not os.access(argv[0], os.X_OK):
        remedy = "Install Ray 2.52 or newer into engine.vllm.venv, the same version on every host."
        raise ConfigInvalid(f"engine.vllm.venv has no Ray: {argv[0]} is not there", remedy=remedy)
    versions = [
        path.name.split("-")[1]
        for path in Path(argv[0]).parent.parent.glob("lib/python*/site-packages/ray-*.dist-info")
    ]
    if versions and tuple(map(int, versions[0].split(".")[:2])) < _FIRST_WITH_TOKEN:
        remedy = "Install Ray 2.52 or newer: an older one ignores the token and lets everybody in."
        raise ConfigInvalid(f"the Ray of engine.vllm.venv is {versions[0]}", remedy=remedy)
    require_token(config)
    return argv, env


def require_token(config: InstanceConfig) -> None:
    """Raise ConfigInvalid where the token's file has none: Ray would make a cluster that everybody may join."""
    from ascendd.errors import ConfigInvalid
    from ascendd.host.ray_nodes import token_path
    from ascendd.vllm.ray_node import NO_TOKEN

    assert config.cluster is not None
    assert config.cluster.token_file is not None  # of read
    token = Path(config.cluster.token_file)
    try:
        text = token.read_bytes().strip()
    except OSError:
        text = b""
    if text in (b"", NO_TOKEN):
        place = token if not os.environ.get("CREDENTIALS_DIRECTORY") else token_path("INSTANCE")
        remedy = f"Make one (umask 077; openssl rand -hex 32 > {place}) and copy it to every host."
        raise ConfigInvalid(f"the cluster's token {token} cannot be read or is empty", remedy=remedy)


def show(config: InstanceConfig, *, as_json: bool) -> int:
    """Print the hosts; return 0 with all, 1 with fewer. Raises EngineFault where the head does not answer."""
    import asyncio
    import json

    from ascendd.vllm.ray_node import ask_nodes, is_head, missing_text

    cluster = config.cluster
    assert cluster is not None
    nodes = asyncio.run(ask_nodes(config, os.environ))
    missing = missing_text(cluster, nodes)
    if as_json:
        told = {"head": cluster.head, "expected": cluster.nodes, "alive": nodes.alive, "lost": nodes.lost}
        print(json.dumps(told | {"complete": not missing}))
    else:
        for node in nodes.alive:
            print(f"{node:40} alive{' (head)' if node == cluster.head else ''}")
        for node in nodes.lost:
            print(f"{node:40} away")
        role = "head" if is_head(cluster) else "worker"
        print(missing or f"all {cluster.nodes} hosts have joined; this one is {cluster.address} ({role})")
    return 1 if missing else 0
