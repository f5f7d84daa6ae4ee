"""Names of vendor packages and wheels, and the order of steps. Pure."""

from __future__ import annotations

from typing import Any

import pytest
from ascendd.installer.bundle import Wheel, pins
from ascendd.installer.graph import in_order
from ascendd.installer.media import PackageKind, parse_package


@pytest.mark.parametrize(
    ("name", "kind", "chip", "version", "architecture"),
    [
        ("Ascend-hdk-910b-npu-driver_24.1.rc3_linux-aarch64.run", PackageKind.DRIVER, "910b", "24.1.rc3", "aarch64"),
        ("Ascend-hdk-310p-npu-driver-soc_24.1.0_linux-x86-64.run", PackageKind.DRIVER, "310p", "24.1.0", "x86_64"),
        ("Ascend-hdk-A3-npu-driver_25.0.rc1.1_linux-x86_64.run", PackageKind.DRIVER, "a3", "25.0.rc1.1", "x86_64"),
        ("Ascend-hdk-910b-npu-firmware_7.5.0.1.129.run", PackageKind.FIRMWARE, "910b", "7.5.0.1.129", None),
        ("Ascend-hdk-310p-npu-firmware-soc_7.5.0.1.129.run", PackageKind.FIRMWARE, "310p", "7.5.0.1.129", None),
        ("Ascend-cann-toolkit_8.3.RC2_linux-aarch64.run", PackageKind.TOOLKIT, "", "8.3.RC2", "aarch64"),
        ("Ascend-cann-kernels-910b_8.0.RC3_linux-x86_64.run", PackageKind.OPS, "910b", "8.0.RC3", "x86_64"),
        ("Ascend-cann-kernels-910b_8.0.0_linux.run", PackageKind.OPS, "910b", "8.0.0", None),
        ("Ascend-cann-910b-ops_8.5.0_linux-aarch64.run", PackageKind.OPS, "910b", "8.5.0", "aarch64"),
        ("Ascend-cann-nnal_8.5.0_linux-aarch64.run", PackageKind.NNAL, "", "8.5.0", "aarch64"),
        ("Ascend-mindie_2.0_linux-aarch64.run", None, "", "", ""),
    ],
)
def test_package_names(name: str, kind: Any, chip: str, version: str, architecture: str | None) -> None:
    """Kind, chip, version and architecture are read from the name; other names are no package."""
    package = parse_package(f"/media/{name}")

    seen = None if package is None else (package.kind, package.chip, package.version, package.architecture)
    assert seen == (None if kind is None else (kind, chip, version, architecture))


def wheel(name: str, version: str, python: str, platform: str, abi: str = "none") -> Wheel:
    return Wheel(f"/w/{name}-{version}-{python}-{abi}-{platform}.whl", name, version, python, platform)


@pytest.mark.parametrize(
    ("python", "platform", "abi", "fits"),
    [
        ("cp311", "manylinux_2_28_x86_64", "cp311", True),
        ("cp311", "manylinux_2_17_x86_64.manylinux2014_x86_64", "cp311", True),
        ("cp310", "manylinux_2_28_x86_64", "cp310", False),
        ("cp39", "manylinux_2_28_x86_64", "abi3", True),
        ("cp312", "manylinux_2_28_x86_64", "abi3", False),
        ("cp311", "manylinux_2_28_aarch64", "cp311", False),
        ("py3", "any", "none", True),
        ("py2.py3", "any", "none", True),
    ],
)
def test_wheel_fits(python: str, platform: str, abi: str, fits: bool) -> None:
    """Tags decide whether a wheel is for Python 3.11 on x86_64."""
    assert wheel("a", "1", python, platform, abi).fits("3.11", "x86_64") is fits


def test_pins_refuse_two_versions() -> None:
    """Two versions that fit are a problem by name; one for another Python beside a fitting one is not."""
    wheels = [
        wheel("a", "1", "py3", "any"),
        wheel("a", "2", "py3", "any"),
        wheel("b", "1", "cp310", "any"),
        wheel("b", "1", "cp311", "any"),
    ]

    assert pins(wheels, "3.11", "x86_64") == (
        {"b": "1"},
        ["the wheels hold a in the versions 1, 2; leave one of them"],
    )


class Node:
    def __init__(self, name: str, *requires: str) -> None:
        self.id, self.requires = name, requires


def test_order_keeps_requirements() -> None:
    """A step comes after all it requires, and otherwise where it was written."""
    steps: Any = [Node("c", "a"), Node("a"), Node("b"), Node("d", "c", "b")]

    assert [step.id for step in in_order(steps)] == ["a", "c", "b", "d"]


@pytest.mark.parametrize("nodes", [[Node("a", "b"), Node("b", "a")], [Node("a", "nowhere")]])
def test_impossible_orders_are_defects(nodes: Any) -> None:
    """A cycle and an unknown requirement do not pass."""
    with pytest.raises(AssertionError):
        in_order(nodes)
