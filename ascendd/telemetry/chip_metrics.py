"""
The chips of a host as Samples: our names, and those of Huawei's npu-exporter. Pure.

Source of npu-exporter's names, labels and units: "Prometheus Metrics API" of MindCluster,
https://www.hiascend.com/document/detail/en/mindcluster/730/clustersched/schedulingug/dlug_api_004.html. Its labels for
containers are empty outside Kubernetes, which is the same as not being there.
"""

from __future__ import annotations

from collections.abc import Iterator

from ascendd.host.npu_smi_table import NpuChip, NpuSmiReport
from ascendd.ipc.messages import Sample
from ascendd.telemetry.metric_spec import counter, gauge

_CHIP = ("npu", "chip")
_THEIRS = ("id", "model_name", "pcie_bus_info")
_MB = 1 << 20

CHIP_METRICS = (
    gauge("ascendd_chips_readable", "1 while npu-smi tells of the chips, 0 while it does not answer or is not there."),
    gauge("ascendd_chips", "Chips that npu-smi lists."),
    counter("ascendd_chip_reads_total", "Readings of npu-smi, by outcome: ok or failed.", "outcome"),
    gauge("ascendd_chip_read_seconds", "Time that the last reading of npu-smi took."),
    gauge("ascendd_chip_info", "Always 1; the labels tell which chip it is.", *_CHIP, "name", "bus_id"),
    gauge("ascendd_chip_healthy", "1 where npu-smi calls the chip OK, 0 at any other word.", *_CHIP),
    gauge("ascendd_chip_power_watts", "Power of the chip.", *_CHIP),
    gauge("ascendd_chip_temperature_celsius", "Temperature of the chip.", *_CHIP),
    gauge("ascendd_chip_utilization_ratio", "Share of time in which its cores computed, 0 to 1.", *_CHIP),
    gauge("ascendd_chip_memory_bytes", "Memory of the chip (HBM where it has that).", *_CHIP),
    gauge("ascendd_chip_memory_used_bytes", "Memory of the chip in use.", *_CHIP),
    gauge("ascendd_instance_listening", "1 where an instance of this host answers its control socket.", "name"),
)

NPU_EXPORTER_METRICS = (
    gauge("machine_npu_nums", "Chips of this host."),
    gauge("npu_chip_info_name", "Always 1; the label name tells what the chip is.", "id", "name", "pcie_bus_info"),
    gauge("npu_chip_info_health_status", "1 healthy, 0 not.", *_THEIRS),
    gauge("npu_chip_info_power", "Power in W.", *_THEIRS),
    gauge("npu_chip_info_temperature", "Temperature in degrees Celsius.", *_THEIRS),
    gauge("npu_chip_info_utilization", "Use of the cores in per cent.", *_THEIRS),
    gauge("npu_chip_info_hbm_used_memory", "HBM in use, in MB.", *_THEIRS),
    gauge("npu_chip_info_hbm_total_memory", "HBM in MB.", *_THEIRS),
    gauge("npu_chip_info_used_memory", "DDR memory in use, in MB, where the chip has such.", *_THEIRS),
    gauge("npu_chip_info_total_memory", "DDR memory in MB, where the chip has such.", *_THEIRS),
)


def chip_samples(report: NpuSmiReport, *, with_npu_exporter: bool) -> list[Sample]:
    """
    Return what `report` tells of its chips, under npu-exporter's names too where asked.

    What npu-smi did not print has no sample: a 0 in its place would be a lie. A chip that has no id (its first line
    was dropped) cannot be told from others and is only counted.
    """
    samples = [Sample("ascendd_chips", float(len(report.chips)))]
    if with_npu_exporter:
        samples.append(Sample("machine_npu_nums", float(len(report.chips))))
    for chip in report.chips:
        if chip.npu_id is None:
            continue
        samples += _ours(chip)
        if with_npu_exporter:
            samples += _theirs(chip)
    return samples


def _ours(chip: NpuChip) -> Iterator[Sample]:
    labels = (str(chip.npu_id), "" if chip.chip_id is None else str(chip.chip_id))
    used_mb, total_mb = _memory(chip)
    yield Sample("ascendd_chip_info", 1.0, (*labels, chip.name or "", chip.bus_id or ""))
    for name, value in (
        ("healthy", _health(chip)),
        ("power_watts", chip.power_w),
        ("temperature_celsius", chip.temperature_c),
        ("utilization_ratio", None if chip.utilization_percent is None else chip.utilization_percent / 100),
        ("memory_bytes", None if total_mb is None else total_mb * _MB),
        ("memory_used_bytes", None if used_mb is None else used_mb * _MB),
    ):
        if value is not None:
            yield Sample(f"ascendd_chip_{name}", float(value), labels)


def _theirs(chip: NpuChip) -> Iterator[Sample]:
    chip_id = str(chip.physical_id)
    name, bus_id = chip.name or "", chip.bus_id or ""
    yield Sample("npu_chip_info_name", 1.0, (chip_id, name, bus_id))
    for suffix, value in (
        ("health_status", _health(chip)),
        ("power", chip.power_w),
        ("temperature", chip.temperature_c),
        ("utilization", chip.utilization_percent),
        ("hbm_used_memory", chip.hbm_used_mb if chip.hbm_total_mb else None),
        ("hbm_total_memory", chip.hbm_total_mb or None),
        ("used_memory", chip.memory_used_mb if chip.memory_total_mb else None),
        ("total_memory", chip.memory_total_mb or None),
    ):
        if value is not None:
            yield Sample(f"npu_chip_info_{suffix}", float(value), (chip_id, name, bus_id))


def _health(chip: NpuChip) -> float | None:
    return None if chip.health is None else float(chip.health == "OK")


def _memory(chip: NpuChip) -> tuple[int | None, int | None]:
    """Return used and total MB of the memory that models lie in: HBM, or DDR where there is no HBM."""
    if chip.hbm_total_mb:
        return chip.hbm_used_mb, chip.hbm_total_mb
    return (chip.memory_used_mb, chip.memory_total_mb) if chip.memory_total_mb else (None, None)
