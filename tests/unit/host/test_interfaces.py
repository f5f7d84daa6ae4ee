"""What `ip -json address` says."""

from __future__ import annotations

import pytest

from ascendd.errors import ProbeParseError
from ascendd.host.interfaces import Interface, parse_interfaces


def test_interfaces_that_were_not_asked_for_are_left_out():
    """Older releases print an empty object for each of them."""
    text = '[{}, {"ifname": "eth1", "flags": ["UP"], "addr_info": [{"local": "10.0.0.5", "prefixlen": 22}]}]'

    assert parse_interfaces(text) == (Interface("eth1", True, (("10.0.0.5", 22),)),)


@pytest.mark.parametrize("text", ["{", "[1]", '[{"addr_info": [{"local": "a"}]}]', '[{"addr_info": 1}]'])
def test_noise_is_no_address(text):
    """What is not the form of `ip -json` is an error of ours with its text."""
    with pytest.raises(ProbeParseError, match="printed what is not known"):
        parse_interfaces(text)
