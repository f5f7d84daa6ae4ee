"""
The drop-in file of one instance's node of Ray: no packet on any interface but the one between the hosts.

    /etc/systemd/system/ascendd-ray@NAME.service.d/50-interface.conf

Ray's GCS and raylet listen on every interface whatever they are told (2.60), so the kernel has to keep the others shut.
"""

from __future__ import annotations

import ipaddress

from ascendd.errors import HostError
from ascendd.host.command import RunCommand
from ascendd.host.drop_in import UNITS_DIR, drop_in_path
from ascendd.host.interfaces import parse_interfaces

_TIMEOUT_S = 5.0


def ray_unit(instance: str) -> str:
    """Return the name of the unit. Raises UsageError where `instance` is no name of one."""
    drop_in_path(instance)
    return f"ascendd-ray@{instance}.service"


def ray_drop_in_path(instance: str) -> str:
    """Return the path of the drop-in. Raises UsageError where `instance` is no name of one."""
    return f"{UNITS_DIR}/{ray_unit(instance)}.d/50-interface.conf"


def find_network(run: RunCommand, interface: str, address: str) -> str:
    """Return the network of `address` on `interface`, as 10.0.0.0/24. Raises HostError where it is not there."""
    outcome = run(("ip", "-json", "address", "show", "dev", interface), _TIMEOUT_S, {})
    if outcome.status != 0:
        said = (outcome.stderr.strip().splitlines() or ["no answer"])[0]
        raise HostError(
            f"cluster.interface is {interface}, which this host does not have: {said}",
            remedy="Write the interface between the hosts; `ip -br address` lists them.",
        )
    found = [one for there in parse_interfaces(outcome.stdout) for one in there.addresses]
    wanted = ipaddress.ip_address(address)
    for one, length in found:
        if ipaddress.ip_address(one) == wanted:
            return str(ipaddress.ip_network(f"{one}/{length}", strict=False))
    there = ", ".join(one for one, _ in found) or "none"
    raise HostError(
        f"cluster.address is {address}, but {interface} has other addresses: {there}",
        remedy="Correct cluster.address or cluster.interface; `ip -br address` lists both.",
    )


def ray_drop_in_text(instance: str, interface: str, network: str, head: str) -> str:
    """Return the content of the drop-in. Pure: equal arguments give equal text."""
    lines = [
        f"# Written by `ascendd cluster join --instance {instance}`, and written anew by it. Changes of your own",
        f"# belong into another file of this folder: `systemctl edit ascendd-ray@{instance}`.",
        "[Service]",
        f"RestrictNetworkInterfaces=lo {interface}",
        "# Where systemd cannot do that, it can keep other addresses away. Hosts outside this network need a further",
        "# line IPAddressAllow=.",
        "IPAddressDeny=any",
        f"IPAddressAllow=localhost {network} {head}",
    ]
    return "\n".join(lines) + "\n"
