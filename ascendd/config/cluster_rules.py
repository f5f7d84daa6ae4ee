"""What `cluster:` may say. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from ascendd.config.schema import InstanceConfig

# A kernel's name of an interface is at most 15 characters (netdevice(7)).
_INTERFACE = re.compile(r"[A-Za-z0-9._@-]{1,15}", re.ASCII)


def cluster_problems(config: InstanceConfig) -> Iterator[tuple[str, object, str, str]]:
    """Yield (path, value, rule, hint) for everything of the section that is wrong."""
    cluster = config.cluster
    if cluster is None:
        return
    if config.engine.backend != "vllm":
        rule = "is for backend: vllm; the native engine serves on one host"
        yield "$.cluster", cluster.head, rule, "write engine.backend: vllm, or remove cluster"
    if config.parallel.pipeline_parallel_size != 1:
        rule = "is this host's share, and each host is one stage of the pipeline"
        hint = "write 1: vLLM gets cluster.nodes"
        yield "$.parallel.pipeline_parallel_size", config.parallel.pipeline_parallel_size, rule, hint
    for key in ("head", "address"):
        text = getattr(cluster, key)
        try:
            is_one_host = not ipaddress.ip_address(text).is_unspecified
        except ValueError:
            is_one_host = False
        if not is_one_host:
            hint = "write the address on the interface between the hosts, such as 10.0.0.1"
            yield f"$.cluster.{key}", text, "is not the IP address of one host", hint
    if not _INTERFACE.fullmatch(cluster.interface):
        yield "$.cluster.interface", cluster.interface, "is no name of an interface", "`ip -br address` lists them"
    if cluster.token_file is not None and not cluster.token_file.startswith("/"):
        yield "$.cluster.token_file", cluster.token_file, "is not an absolute path", "write the token's file"
