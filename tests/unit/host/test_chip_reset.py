"""Chips are reset with their ring, after their logs are exported, and never under somebody who computes there."""

from __future__ import annotations

from pathlib import Path

import pytest
import vendor_texts as texts
from fake_machine import FakeMachine
from resettable import ResettableMachine

from ascendd.host.chip_reset import ChipReset, ResetResult, ring_of
from ascendd.host.files import HostFiles
from ascendd.host.npu_smi_table import parse_info
from ascendd.host.npu_topology import NpuTopology, parse_topology

CHIPS = parse_info(texts.info_table()).chips


def reset_of(machine: FakeMachine, tmp_path: Path) -> ChipReset:
    """What resets chips of `machine` without waiting."""
    files = HostFiles(str(machine.root))
    return ChipReset(tmp_path / "logs", files, machine.environ, back_s=1.0, pause_s=0.0, sleep=lambda _s: None)


@pytest.mark.parametrize("prompts", [1, 2])
def test_a_faulty_chip_is_reset_with_its_ring(tmp_path: Path, prompts: int) -> None:
    """Logs first, each prompt answered, in band; the one in alarm is named, and the whole HCCS ring is told."""
    machine = ResettableMachine(tmp_path / "host", prompts=prompts)

    outcome = reset_of(machine, tmp_path).reset(frozenset({1, 2}))

    assert (outcome.result, outcome.num_tries, len(outcome.ring)) == (ResetResult.DONE, 1, 8)
    assert machine.resets() == ["set -t reset -i 2 -c 0 -m 1"]
    assert (machine.root / "resets-after-export").read_text().splitlines() == machine.resets()
    assert (machine.root / "answers").read_text().split() == ["Y"] * prompts
    assert outcome.logs is not None
    assert [path.name for path in Path(outcome.logs).iterdir()] == ["exported.log"]
    assert "NPU 2 chip 0 (0000:C2:00.0) was reset with its ring of 8 chips, 1 tries; device logs are in" in outcome.text


def test_three_tries_at_most(tmp_path: Path) -> None:
    """In band, out of band, in band; then it says so and leaves the chip alone."""
    machine = ResettableMachine(tmp_path / "host", fails=99)

    outcome = reset_of(machine, tmp_path).reset(frozenset({2}))

    assert (outcome.result, outcome.num_tries) == (ResetResult.FAILED, 3)
    one = "set -t reset -i 2 -c 0"
    assert machine.resets() == [f"{one} -m 1", one, f"{one} -m 1"]
    assert "NPU 2 chip 0 (0000:C2:00.0) was not reset in 3 tries: npu-smi set -t reset" in outcome.text


def test_a_second_try_may_help(tmp_path: Path) -> None:
    """What fails in band is done out of band."""
    machine = ResettableMachine(tmp_path / "host", fails=1)

    outcome = reset_of(machine, tmp_path).reset(frozenset({2}))

    assert (outcome.result, outcome.num_tries) == (ResetResult.DONE, 2)
    assert machine.resets()[-1] == "set -t reset -i 2 -c 0"


def test_nothing_is_reset_under_somebody_of_the_ring(tmp_path: Path) -> None:
    """Whoever has another chip of the ring open, or is listed on one, is named; no log is exported, no reset asked."""
    machine = ResettableMachine(tmp_path / "host")
    machine.process(4711, "vllm", holds=("/dev/davinci6",))

    outcome = reset_of(machine, tmp_path).reset(frozenset({2}))

    assert (outcome.result, machine.resets(), outcome.logs) == (ResetResult.HELD, [], None)
    assert "not reset: vllm (pid 4711) has NPU 6 chip 0" in outcome.text
    assert not (machine.root / "exported").exists()


def test_a_reset_after_which_the_chip_is_still_ill_is_none(tmp_path: Path) -> None:
    """The tool's word is not believed: the chip must be listed and well."""
    machine = ResettableMachine(tmp_path / "host")
    machine.write("healthy", (machine.root / ".answers/npu-smi/info").read_text())

    outcome = reset_of(machine, tmp_path).reset(frozenset({2}))

    assert (outcome.result, len(machine.resets())) == (ResetResult.FAILED, 3)
    assert "reports health Alarm, 1 s after the reset" in outcome.text


def test_a_reset_by_somebody_else_is_not_taken_for_ours(tmp_path: Path) -> None:
    """The lock of the tool is told in its own words."""
    machine = ResettableMachine(tmp_path / "host")
    machine.write("locked", texts.recording("abn-set-reset-locked.txt"))

    outcome = reset_of(machine, tmp_path).reset(frozenset({2}))

    assert outcome.result is ResetResult.FAILED
    assert "Another user is resetting the NPU(s)" in outcome.text


def test_without_the_export_tool_the_outcome_says_that_the_logs_are_lost(tmp_path: Path) -> None:
    """The reset is worth more than its logs, and nobody is left to look for them."""
    machine = ResettableMachine(tmp_path / "host")
    machine.remove("usr/local/Ascend/driver/tools/msnpureport")

    outcome = reset_of(machine, tmp_path).reset(frozenset({2}))

    assert (outcome.result, outcome.logs) == (ResetResult.DONE, None)
    assert outcome.text.endswith("device logs were not exported: there is no msnpureport")


@pytest.mark.parametrize(
    ("named", "expected"), [(frozenset(), {1, 2}), (frozenset({1}), {1}), (frozenset({7}), {1, 2})]
)
def test_where_no_chip_reports_a_fault_the_named_one_is_taken(tmp_path: Path, named, expected) -> None:
    """Of the instance's own chips only; without a name all of them."""
    machine = FakeMachine(tmp_path / "host")

    assert reset_of(machine, tmp_path).plan(frozenset({1, 2}), named).wanted == expected


def test_the_ring_is_what_fast_links_join() -> None:
    """Over HCCS, by others as well; PCIe ends it; a host whose links are not known is one ring."""
    one_ring = parse_topology(texts.recording("topo-910B3-8npu.txt"))
    words = {(a, b): "X" if a == b else "HCCS" if a // 4 == b // 4 else "PHB" for a in range(8) for b in range(8)}
    two_rings = NpuTopology(tuple(range(8)), words, {})

    assert ring_of(5, CHIPS, one_ring) == set(range(8))
    assert ring_of(5, CHIPS, two_rings) == {4, 5, 6, 7}
    assert ring_of(5, CHIPS, None) == set(range(8))
    assert ring_of(5, CHIPS, NpuTopology((0, 1), {}, {})) == set(range(8))
