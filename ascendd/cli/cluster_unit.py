"""Joining and leaving a cluster through this host's systemd: the unit, its drop-in, and the head's word for it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

from ascendd.cli.cluster import node_command
from ascendd.config.schema import ClusterSection, InstanceConfig
from ascendd.errors import EngineFault, HostError, PermissionMissing
from ascendd.host.command import run_command
from ascendd.host.ray_nodes import Nodes
from ascendd.host.ray_unit import find_network, ray_drop_in_path, ray_drop_in_text, ray_unit
from ascendd.vllm.ray_node import ask_nodes, is_head, missing_text

_LOOK_EVERY_S = 2.0
# The unit's TimeoutStopSec is 30.
_SYSTEMCTL_S = 120.0


def join_host(instance: str, config: InstanceConfig, wait_s: float) -> None:
    """Write the drop-in, enable and start the unit. Raises ConfigInvalid, HostError, PermissionMissing, EngineFault."""
    cluster = config.cluster
    assert cluster is not None
    node_command(config)  # what the unit would refuse is refused here
    network = find_network(run_command, cluster.interface, cluster.address)
    path = Path(ray_drop_in_path(instance))
    text = ray_drop_in_text(instance, cluster.interface, network, cluster.head)
    try:
        # A node that runs as it should goes on: vLLM may be running over it.
        verb = "start" if path.exists() and path.read_text(encoding="utf-8") == text else "restart"
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o644)
    except OSError as error:
        raise PermissionMissing(f"{path} cannot be written: {error.strerror}", remedy="Run this as root.") from error
    systemctl("daemon-reload")
    systemctl("enable", "--quiet", ray_unit(instance))
    systemctl(verb, ray_unit(instance))
    print(f"{ray_unit(instance)} runs, on {cluster.interface} ({network}) only")
    if wait_s:
        nodes = wait_for(
            lambda nodes: cluster.address in nodes.alive, config, wait_s, f"{cluster.address} did not join"
        )
        print(missing_text(cluster, nodes) or f"all {cluster.nodes} hosts have joined")
    if is_head(cluster):
        print(f"once all have joined it serves: `systemctl enable --now ascendd@{instance}`")


def leave_host(instance: str, config: InstanceConfig, wait_s: float) -> None:
    """Stop and disable the unit and remove its drop-in. Raises HostError, PermissionMissing, EngineFault."""
    cluster = config.cluster
    assert cluster is not None
    systemctl("disable", "--now", "--quiet", ray_unit(instance))
    path = Path(ray_drop_in_path(instance))
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise PermissionMissing(f"{path} cannot be removed: {error.strerror}", remedy="Run this as root.") from error
    systemctl("daemon-reload")
    print(f"{ray_unit(instance)} is stopped, and is not started at boot")
    if is_head(cluster):
        print("this was the head: there is no cluster any more; the other hosts wait for it")
    elif wait_s:
        nodes = wait_for(lambda nodes: cluster.address not in nodes.alive, config, wait_s, "the head still counts it")
        print(told_of_leaving(cluster, nodes))


def told_of_leaving(cluster: ClusterSection, nodes: Nodes) -> str:
    """Return what the head has left."""
    rest = f"{len(nodes.alive)} of {cluster.nodes} hosts are there ({', '.join(nodes.alive) or 'none'})"
    return f"{cluster.address} has left: {rest}; the instance serves again once all are"


def wait_for(condition: Callable[[Nodes], bool], config: InstanceConfig, wait_s: float, otherwise: str) -> Nodes:
    """Ask the head until `condition` holds. Raises EngineFault after `wait_s` seconds, with what the head said last."""
    until_s = time.monotonic() + wait_s
    while True:
        try:
            nodes = asyncio.run(ask_nodes(config, os.environ))
        except EngineFault as error:
            said = error.message
        else:
            if condition(nodes):
                return nodes
            said = f"the head knows {', '.join(nodes.alive) or 'nobody'}"
        if time.monotonic() > until_s:
            raise EngineFault(
                f"{otherwise} within {wait_s:g} s: {said}",
                remedy="Read `journalctl -u ascendd-ray@INSTANCE` on both hosts.",
            )
        time.sleep(_LOOK_EVERY_S)


def systemctl(*words: str) -> None:
    """Run it. Raises HostError with what it said."""
    outcome = run_command(("systemctl", *words), _SYSTEMCTL_S, os.environ)
    if outcome.status:
        said = (outcome.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise HostError(
            f"`systemctl {' '.join(words)}` failed: {said}", remedy="Run this as root, on a host with systemd."
        )
