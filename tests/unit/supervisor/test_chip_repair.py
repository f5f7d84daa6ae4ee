"""Who resets the chips of an instance, and which of them are its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from resettable import ResettableMachine

from ascendd.config.load import convert
from ascendd.errors import DeviceLost, DeviceOutOfMemory
from ascendd.host.chip_reset import ChipReset, ResetResult
from ascendd.host.files import HostFiles
from ascendd.ipc.messages import Fault
from ascendd.supervisor.chip_repair import ChipRepair, asks_for_reset, device_logs_folder
from ascendd.supervisor.device_probe import DeviceProbe
from ascendd.supervisor.devices import npu_devices


def test_only_an_instance_that_may_resets_chips() -> None:
    """recovery.reset_chips is off as shipped; without chips there is nothing to reset."""
    off = convert({"model": {"path": "/m"}})
    on = convert({"model": {"path": "/m"}, "recovery": {"reset_chips": True}})

    assert ChipRepair.of(off, "a", frozenset({0})) is None
    assert ChipRepair.of(on, "a", frozenset()) is None
    assert ChipRepair.of(on, "a", frozenset({0})) is not None


def test_the_vendors_table_decides_which_fault_a_reset_cures() -> None:
    """By its action; a fault without one, and no fault at all, asks for none."""
    lost = Fault.from_error(DeviceLost("lost", action="device_reset_or_reboot"))

    assert asks_for_reset(lost)
    assert not asks_for_reset(Fault.from_error(DeviceOutOfMemory("none", action="free_memory")))
    assert not asks_for_reset(Fault.from_error(DeviceLost("lost")))
    assert not asks_for_reset(None)


@pytest.mark.parametrize(
    ("status", "main", "expected"),
    [
        (0, "0", ResetResult.DONE),
        (1, "75", ResetResult.HELD),
        (1, "74", ResetResult.FAILED),
        (4, "0", ResetResult.FAILED),
    ],
)
def test_a_daemon_that_is_not_root_has_the_unit_do_it(tmp_path: Path, monkeypatch, status, main, expected) -> None:
    """ascendd-reset@INSTANCE is started and waited for; its exit status tells held from failed."""
    tool = tmp_path / "systemctl"
    tool.write_text(
        f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\n[ "$1" = show ] && {{ echo {main}; exit 0; }}\necho no >&2; exit {status}\n'
    )
    tool.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 990)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    work = ChipReset(tmp_path / "logs", HostFiles(), dict(os.environ))

    outcome = ChipRepair("blue", frozenset({2}), work).repair(None)

    assert outcome.result is expected
    assert "ascendd-reset@blue.service" in outcome.text
    assert (tmp_path / "asked").read_text().splitlines()[0] == "start ascendd-reset@blue.service"


def test_a_chip_that_was_left_out_is_neither_judged_nor_reset(tmp_path: Path) -> None:
    """An instance that goes on without a chip in alarm must not wait for that chip, nor end the others for it."""
    machine = ResettableMachine(tmp_path / "host")
    files = HostFiles(str(machine.root))
    left_out = frozenset({2})

    reading = DeviceProbe(frozenset({2, 3}), files, machine.environ).read(None, left_out)
    work = ChipReset(tmp_path / "logs", files, machine.environ, pause_s=0.0, sleep=lambda _s: None)
    outcome = ChipRepair("blue", frozenset({2}), work).repair(2, left_out)

    assert list(reading.health.values()) == ["OK"]
    assert (outcome.result, machine.resets()) == (ResetResult.FAILED, [])


def test_a_chip_that_falls_off_the_bus_gives_its_number_to_no_other(tmp_path: Path) -> None:
    """The list of npu-smi gets shorter and those behind move up; the instance keeps looking at its own chips."""
    machine = ResettableMachine(tmp_path / "host")
    probe = DeviceProbe(frozenset({2, 3}), HostFiles(str(machine.root)), machine.environ)
    before = probe.read(None)
    table = machine.root / ".answers/npu-smi/info"
    lines = table.read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("| 2     910B3"))
    table.write_text("\n".join(lines[:at] + lines[at + 3 :]) + "\n")

    after = probe.read(None)

    assert sorted(before.numbers.values()) == [2, 3]
    assert {label.split(" (")[0]: number for label, number in after.numbers.items()} == {"NPU 3 chip 0": 3}


@pytest.mark.parametrize(
    ("parallel", "visible", "expected"),
    [
        ({"tensor_parallel_size": 2}, "4,5,6", [4, 5]),
        ({"tensor_parallel_size": 2, "devices": [6, 7]}, "4,5", [6, 7]),
        ({"tensor_parallel_size": 2}, "no list", [0, 1]),
        ({"tensor_parallel_size": 2}, None, [0, 1]),
    ],
)
def test_the_chips_of_the_engine_are_those_that_are_watched(monkeypatch, parallel, visible, expected) -> None:
    """What the unit leaves visible counts for the proof of release as it does for the engine."""
    environ = {} if visible is None else {"ASCEND_RT_VISIBLE_DEVICES": visible}
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    config = convert({"model": {"path": "/m"}, "parallel": parallel})

    assert npu_devices(config, environ) == expected
    assert DeviceProbe.of(config, "npu").devices == set(expected)


def test_device_logs_lie_within_the_budget(tmp_path: Path) -> None:
    """Below the vendor's own logs of the instance, which log.budget bounds."""
    assert device_logs_folder("blue", {"LOGS_DIRECTORY": str(tmp_path)}) == tmp_path / "blue/ascend"
    assert device_logs_folder("blue", {"XDG_RUNTIME_DIR": str(tmp_path)}) == tmp_path / "ascendd/blue/device-logs"
