"""When the devices of an engine that ended count as free."""

from __future__ import annotations

import pytest

from ascendd.supervisor.release import DeviceReading, ReleaseProof, Verdict

CHIP = "NPU 0 chip 0"
EMPTY = DeviceReading(used_mb={CHIP: 3000}, health={CHIP: "OK"})


def proof(kind="npu"):
    """Return a proof whose chip had 3,000 MB in use at first, some of it by a process of somebody else."""
    subject = ReleaseProof(kind)
    subject.baseline = DeviceReading(("exporter (pid 9) on NPU 0 chip 0",), {CHIP: 3000}, {CHIP: "OK"})
    return subject


@pytest.mark.parametrize(
    ("reading", "since_s", "text"),
    [
        (EMPTY, 9.9, "the device is given 10 s to be released"),
        (EMPTY, 10.0, ""),
        (DeviceReading(), 10.0, ""),
        (DeviceReading(problem="npu-smi is not there"), 10.0, ""),
        (DeviceReading(("exporter (pid 9) on NPU 0 chip 0",), {CHIP: 3000}), 10.0, ""),
        (
            DeviceReading(("exporter (pid 9) on NPU 0 chip 0", "python3 (pid 7) on /dev/davinci0")),
            99.0,
            "the device is still held by python3 (pid 7) on /dev/davinci0",
        ),
        (DeviceReading(used_mb={CHIP: 3512}), 10.0, ""),
        (
            DeviceReading(used_mb={CHIP: 3513}),
            99.0,
            "NPU 0 chip 0 has 3513 MB in use, 3000 MB before the first start; seen with nobody",
        ),
    ],
)
def test_an_npu_is_free_when_nobody_holds_it_and_its_memory_is_back(reading, since_s, text):
    """Whoever was there before the first start does not count; a chip that cannot be asked counts as free in time."""
    assert proof().judge(reading, since_s) == Verdict(not text, text, is_leaked="seen with nobody" in text)


def test_a_cpu_is_free_at_once_unless_a_process_is_left():
    """Without a chip only the processes of the old engine count."""
    assert proof("cpu").judge(DeviceReading(), 0.0) == Verdict(True)
    assert proof("cpu").judge(DeviceReading(("python3 (pid 7)",)), 0.0).is_free is False


@pytest.mark.parametrize(
    ("health", "is_free"), [("OK", True), ("Warning", True), ("Alarm", False), ("Critical", False)]
)
def test_the_health_of_a_chip_counts_after_a_hang_or_a_fault(health, is_free):
    """A chip in alarm is not started on; after a plain crash nobody asks."""
    reading = DeviceReading(used_mb={CHIP: 3000}, health={CHIP: health})

    verdict = proof().judge(reading, 60.0, checks_device=True)

    assert (verdict.is_free, verdict.is_faulty) == (is_free, not is_free)
    assert proof().judge(reading, 60.0).is_free
    assert verdict.text == ("" if is_free else f"NPU 0 chip 0 reports health {health}")


def test_a_verdict_names_the_chips_that_stay_at_fault():
    """By their logical numbers: in alarm, gone from the list, or with memory that nobody has; a left-out one is no matter."""
    labels = ("NPU 4 chip 0", "NPU 5 chip 0", "NPU 6 chip 0")
    subject = ReleaseProof("npu")
    before = dict(zip(labels, (4, 5, 6), strict=True))
    subject.baseline = DeviceReading(used_mb=dict.fromkeys(labels, 100), numbers=before)
    numbers = {labels[0]: 4, labels[1]: 5}

    alarm = subject.judge(DeviceReading(health={labels[1]: "Alarm"}, numbers=before), 60.0, checks_device=True)
    gone = subject.judge(DeviceReading(numbers=numbers), 60.0, checks_device=True)
    unread = subject.judge(DeviceReading(problem="npu-smi hangs"), 60.0, checks_device=True)
    without = subject.judge(DeviceReading(numbers=numbers), 60.0, checks_device=True, unused=frozenset({6}))
    leaked = subject.judge(DeviceReading(used_mb={labels[0]: 9000}, numbers=before), 60.0)

    assert (alarm.bad, alarm.is_missing) == ({5: "reports health Alarm"}, False)
    assert (gone.bad, gone.is_faulty, gone.is_missing) == ({6: "is not listed by npu-smi any more"}, True, True)
    assert (unread, without) == (Verdict(True), Verdict(True))
    assert (leaked.is_leaked, list(leaked.bad)) == (True, [4])
