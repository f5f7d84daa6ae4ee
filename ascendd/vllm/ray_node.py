"""
The node of a Ray cluster that a host is: how it is started, and which nodes are there.

Options and variables: https://docs.ray.io/en/latest/cluster/cli.html and .../ray-security/token-auth.html (Ray 2.52 or
newer: an older one knows no token, and `ascendd cluster join` refuses it). Ray is the one of `engine.vllm.venv`, with
which vLLM joins, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ascendd.config.schema import ClusterSection, InstanceConfig
from ascendd.errors import EngineFault
from ascendd.host.ray_nodes import ASK, Nodes, find_nodes, labels_of, token_path
from ascendd.host.systemd import credential

# Of both units (LoadCredential=), and the text that stands for none.
CREDENTIAL = "ray_token"
NO_TOKEN = b"no-token"
_ASK_TIMEOUT_S = 30.0


def is_head(cluster: ClusterSection) -> bool:
    """Return whether this host is the one that serves."""
    return cluster.address == cluster.head


def with_token(config: InstanceConfig, instance: str, environ: Mapping[str, str]) -> InstanceConfig:
    """Return `config` with the token's file: as it names it, else the unit's credential, else where that comes from."""
    cluster = config.cluster
    if cluster is None or cluster.token_file is not None:
        return config
    token = credential(CREDENTIAL, environ) or Path(token_path(instance))
    return msgspec.structs.replace(config, cluster=msgspec.structs.replace(cluster, token_file=str(token)))


def ray_environment(cluster: ClusterSection) -> dict[str, str]:
    """Return what Ray and vLLM need to find each other on the one interface; the token's file only, never the token."""
    assert cluster.token_file is not None  # of with_token
    return {
        "RAY_ADDRESS": f"{cluster.head}:{cluster.port}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": cluster.token_file,
        "RAY_USAGE_STATS_ENABLED": "0",
        "VLLM_HOST_IP": cluster.address,
        "HCCL_IF_IP": cluster.address,
        "HCCL_SOCKET_IFNAME": cluster.interface,
        "GLOO_SOCKET_IFNAME": cluster.interface,
        "TP_SOCKET_IFNAME": cluster.interface,
    }


def start_command(
    config: InstanceConfig, kind: str, environ: Mapping[str, str], facts: Mapping[str, str] | None = None
) -> tuple[list[str], dict[str, str]]:
    """
    Return argv and environment of the node's own process, which stays in the foreground; `kind` is the device's.

    `facts` are what the node says of this host to the others, see host.cluster_facts.
    """
    cluster, section = config.cluster, config.engine.vllm
    assert cluster is not None  # asked for by who calls, and held by config.validate
    assert section is not None
    argv = [str(Path(section.venv) / "bin" / "ray"), "start", "--block", "--disable-usage-stats"]
    argv += ["--node-ip-address", cluster.address]
    if is_head(cluster):
        argv += ["--head", "--port", str(cluster.port), "--include-dashboard", "false"]
    else:
        argv += ["--address", f"{cluster.head}:{cluster.port}"]
    if labels := labels_of(facts or {}):
        argv += ["--labels", labels]
    # Ray counts GPUs by itself and knows no NPU without being told.
    num_devices = config.parallel.tensor_parallel_size
    if kind == "npu":
        argv += ["--resources", json.dumps({"NPU": num_devices})]
    elif kind == "cuda":
        argv += ["--num-gpus", str(num_devices)]
    env = dict(environ) | ray_environment(cluster)
    if state := environ.get("STATE_DIRECTORY", "").split(":")[0]:
        # For ray/ of both units: in /tmp each has a folder of its own, and vLLM would not find Ray's sockets.
        env["RAY_TMPDIR"] = state
    del env["RAY_ADDRESS"]  # `ray start` refuses to make a cluster while it names one
    if devices := config.parallel.devices:
        variable = {"npu": "ASCEND_RT_VISIBLE_DEVICES", "cuda": "CUDA_VISIBLE_DEVICES"}.get(kind)
        if variable is not None:
            env[variable] = ",".join(map(str, devices))
    return argv, env


def ask_command(
    config: InstanceConfig, environ: Mapping[str, str], every_s: float = 0.0
) -> tuple[list[str], dict[str, str]]:
    """Return argv and environment of what asks the head for its nodes: once, or every `every_s` seconds without end."""
    cluster, section = config.cluster, config.engine.vllm
    assert cluster is not None
    assert section is not None
    argv = [str(Path(section.venv) / "bin" / "python"), "-c", ASK, f"{cluster.head}:{cluster.port}", f"{every_s:g}"]
    return argv, dict(environ) | ray_environment(cluster)


async def ask_nodes(config: InstanceConfig, environ: Mapping[str, str]) -> Nodes:
    """Ask the head which nodes it sees. Raises EngineFault where it does not answer."""
    argv, env = ask_command(config, environ)
    address = argv[-2]
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=env,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), _ASK_TIMEOUT_S)
    except (asyncio.TimeoutError, TimeoutError) as error:
        raise EngineFault(f"Ray's head at {address} did not answer within {_ASK_TIMEOUT_S:g} s") from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
    return read_nodes(address, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))


def read_nodes(address: str, out: str, err: str) -> Nodes:
    """Return the nodes of an answer. Raises EngineFault where there is none, with the last line of what was said."""
    nodes = find_nodes(out)
    if nodes is None:
        reason = next(reversed([line for line in err.splitlines() if line.strip()]), "no answer")
        raise EngineFault(
            f"Ray's head at {address} cannot be asked: {reason.strip()[:300]}",
            remedy="Look at `systemctl status ascendd-ray@INSTANCE` on the head.",
        )
    return nodes


def missing_text(cluster: ClusterSection, nodes: Nodes) -> str:
    """Return what an operator reads while hosts are away; empty once all have joined."""
    if len(nodes.alive) >= cluster.nodes:
        return ""
    away = f"; away: {', '.join(nodes.lost)}" if nodes.lost else ""
    return f"waits for hosts: {len(nodes.alive)} of {cluster.nodes} joined ({', '.join(nodes.alive) or 'none'}){away}"
