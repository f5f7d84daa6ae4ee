"""What is checked is decided by the operator, else the configuration, else any trace of an NPU."""

from pathlib import Path

import pytest

from ascendd.host.files import HostFiles
from ascendd.preflight.target import DeviceChoice, choose_target

CARD = {"sys/bus/pci/devices/0000:01:00.0/vendor": "0x19e5", "sys/bus/pci/devices/0000:01:00.0/device": "0xd802"}


@pytest.mark.parametrize(
    ("files", "choice", "configured", "is_npu"),
    [
        ({}, "auto", None, False),
        (CARD, "auto", None, True),
        ({"dev/davinci0": ""}, "auto", None, True),
        ({"etc/ascend_install.info": ""}, "auto", None, True),
        ({"usr/local/Ascend/driver/version.info": "Version=24.1.0"}, "auto", None, True),
        (CARD, "auto", "cpu", False),
        ({}, "auto", "npu", True),
        (CARD, "auto", "auto", True),
        (CARD, "cpu", "npu", False),
        ({}, "npu", "cpu", True),
    ],
)
def test_the_target_of_a_round(
    tmp_path: Path, files: dict[str, str], choice: str, configured: str, is_npu: bool
) -> None:
    """The command line beats the configuration, which beats what the host has."""
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    target = choose_target(HostFiles(str(tmp_path)), DeviceChoice(choice), configured, has_model=False)

    assert target.is_npu is is_npu
    assert target.reason
    assert bool(target.why_no_npu) is not is_npu
