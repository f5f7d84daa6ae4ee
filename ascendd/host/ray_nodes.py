"""Which hosts are in a cluster of Ray and what each says of itself: a question that Ray's own Python asks the head."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Dict, Mapping, Optional, Tuple

# Prints each node as [address, alive, labels], once or every so many seconds; other lines are a library's.
ASK = """
import json, sys, time
from ray._raylet import GcsClient
from ray.core.generated import gcs_pb2
client = GcsClient(address=sys.argv[1])
alive = gcs_pb2.GcsNodeInfo.ALIVE
every_s = float(sys.argv[2])
while True:
    found = client.get_all_node_info(timeout=10).values()
    nodes = [[node.node_manager_address, node.state == alive, dict(node.labels)] for node in found]
    print("NODES " + json.dumps(nodes), flush=True)
    if not every_s:
        break
    time.sleep(every_s)
"""
# Of a node's labels, those that this product gave it (`ray start --labels`).
_PREFIX = "ascendd-"
_NOT_OF_A_LABEL = re.compile(r"[^A-Za-z0-9_.-]")
_MAX_LABEL_CHARS = 63


def token_path(instance: str) -> str:
    """Return where the token of the cluster is that an instance file names none for."""
    return f"/etc/ascendd/keys/{instance}.ray"


@dataclass(frozen=True)
class Nodes:
    """Addresses of the hosts that are there, of those that were and are gone, and what the former say of themselves."""

    alive: Tuple[str, ...]
    lost: Tuple[str, ...]
    facts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def read_line(line: str) -> Nodes:
    """Return the nodes of one line `NODES [...]`. Raises ValueError for anything else."""
    said, _, text = line.partition(" ")
    if said != "NODES":
        raise ValueError(f"no nodes in {line[:80]!r}")
    alive: Dict[str, Dict[str, str]] = {}
    dead: Dict[str, None] = {}
    for address, is_alive, *more in json.loads(text):
        labels = more[0] if more else {}
        if is_alive:
            alive[address] = {key[len(_PREFIX) :]: value for key, value in labels.items() if key.startswith(_PREFIX)}
        else:
            dead[address] = None
    return Nodes(tuple(alive), tuple(one for one in dead if one not in alive), alive)


def find_nodes(text: str) -> Optional[Nodes]:
    """Return the nodes that ASK printed, None where it printed none."""
    line = next((line for line in text.splitlines() if line.startswith("NODES ")), None)
    return None if line is None else read_line(line)


def labels_of(facts: Mapping[str, str]) -> str:
    """Return `facts` as the value of `ray start --labels`, whose values may hold no other than letters, digits, ._-"""
    labels = []
    for key, value in facts.items():
        text = _NOT_OF_A_LABEL.sub("_", value)[:_MAX_LABEL_CHARS].strip("_.-")
        if text:
            labels.append(f"{_PREFIX}{key}={text}")
    return ",".join(labels)
