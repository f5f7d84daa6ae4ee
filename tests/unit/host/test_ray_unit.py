"""The drop-in that keeps a node of Ray on one interface."""

from __future__ import annotations

import json

import pytest

from ascendd.errors import HostError, UsageError
from ascendd.host.command import CommandOutcome
from ascendd.host.ray_unit import find_network, ray_drop_in_path, ray_drop_in_text

ETH1 = json.dumps(
    [
        {
            "ifname": "eth1",
            "addr_info": [
                {"family": "inet", "local": "10.0.0.5", "prefixlen": 22},
                {"family": "inet6", "local": "fd00::5", "prefixlen": 64},
            ],
        }
    ]
)


def answering(status: int, stdout: str = "", stderr: str = ""):
    """Return a runner whose `ip` says that."""
    return lambda argv, _timeout_s, _environ: CommandOutcome(tuple(argv), status, stdout, stderr, 0.0)


@pytest.mark.parametrize(("address", "network"), [("10.0.0.5", "10.0.0.0/22"), ("fd00:0::5", "fd00::/64")])
def test_the_network_of_the_address_is_found(address, network):
    """By the prefix that the interface has, in either family and however the address is written."""
    assert find_network(answering(0, ETH1), "eth1", address) == network


def test_an_address_of_another_interface_is_refused():
    """The addresses that are there are named."""
    with pytest.raises(HostError, match=r"eth1 has other addresses: 10\.0\.0\.5, fd00::5"):
        find_network(answering(0, ETH1), "eth1", "10.0.0.6")


def test_an_interface_that_is_not_there_is_named():
    """With what `ip` said of it."""
    with pytest.raises(HostError, match=r'cluster\.interface is eth9, which this host does not have: Device "eth9"'):
        find_network(answering(1, "", 'Device "eth9" does not exist.\n'), "eth9", "10.0.0.5")


def test_the_drop_in_shuts_all_interfaces_but_one():
    """By interface, and by address where that cannot be had; the head may be in another network."""
    lines = ray_drop_in_text("qwen2", "eth1", "10.0.0.0/22", "10.1.0.1").splitlines()

    assert "RestrictNetworkInterfaces=lo eth1" in lines
    assert lines[-2:] == ["IPAddressDeny=any", "IPAddressAllow=localhost 10.0.0.0/22 10.1.0.1"]
    assert ray_drop_in_path("qwen2") == "/etc/systemd/system/ascendd-ray@qwen2.service.d/50-interface.conf"
    with pytest.raises(UsageError):
        ray_drop_in_path("../x")
