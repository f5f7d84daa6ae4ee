"""Who holds the devices of an instance, read from a tree that looks like /proc."""

from __future__ import annotations

import pytest
import yaml

from ascendd.config.load import convert
from ascendd.host.files import HostFiles
from ascendd.supervisor.device_probe import DeviceProbe

LEADER = 100


@pytest.fixture
def host(tmp_path):
    """Return a function that adds a process, and the files."""

    def add(pid, name="python3", state="S", group=LEADER, session=LEADER, chip=None):
        folder = tmp_path / "proc" / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} ({name}) {state} 1 {group} {session} 0 -1 4194560 0")
        (folder / "cmdline").write_text(f"{name}\0")
        if chip is not None:
            (folder / "fd" / "7").symlink_to(f"/dev/davinci{chip}")

    return add, HostFiles(str(tmp_path))


def test_left_members_of_the_old_engine_are_holders(host):
    """By group or by session; a zombie holds nothing, and a stranger is none of ours."""
    add, files = host
    add(101)
    add(102, name="rank (1)", group=102, state="D")
    add(103, state="Z")
    add(104, group=1, session=1)

    reading = DeviceProbe(frozenset(), files, {}).read(LEADER)

    assert reading.holders == (
        "python3 (pid 101), of the engine that ended",
        "rank (1) (pid 102), of the engine that ended",
    )
    assert DeviceProbe(frozenset(), files, {}).read(None).holders == ()


def test_who_has_a_chip_of_the_instance_open_is_a_holder(host):
    """Only the instance's own chips count; without npu-smi the reading says that memory was not seen."""
    add, files = host
    add(201, name="vllm", group=5, session=5, chip=1)
    add(202, group=6, session=6, chip=4)

    reading = DeviceProbe(frozenset({0, 1}), files, {}).read(LEADER)

    assert reading.holders == ("vllm (pid 201) on /dev/davinci1",)
    assert "npu-smi" in reading.problem


@pytest.mark.parametrize(
    ("kind", "parallel", "devices"),
    [
        ("cpu", "", set()),
        ("npu", "", {0}),
        ("npu", "tensor_parallel_size: 2, pipeline_parallel_size: 2", {0, 1, 2, 3}),
        ("npu", "tensor_parallel_size: 2, devices: [4, 6]", {4, 6}),
    ],
)
def test_the_chips_are_those_of_the_instance(kind, parallel, devices):
    """As configured, else the first ones; a CPU has none."""
    config = convert(yaml.safe_load(f"model: {{path: /m}}\nparallel: {{{parallel}}}"))

    assert DeviceProbe.of(config, kind).devices == devices
