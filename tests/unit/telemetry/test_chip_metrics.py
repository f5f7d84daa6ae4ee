"""The exporter's page, made from recorded outputs of npu-smi."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascendd.host.files import HostFiles
from ascendd.host.npu_smi_table import parse_info
from ascendd.telemetry.chip_metrics import CHIP_METRICS, NPU_EXPORTER_METRICS, chip_samples
from ascendd.telemetry.chip_reader import ChipReader, npu_exporter_runs
from ascendd.telemetry.exposition import Exposition
from ascendd.telemetry.metric_spec import MetricKind

RECORDINGS = Path(__file__).resolve().parents[2] / "fixtures" / "npu-smi"


def values(recording, *, with_npu_exporter=False):
    """Return the samples of a recording by name and labels."""
    text = next(RECORDINGS.glob(recording + "*")).read_text()
    samples = chip_samples(parse_info(text), with_npu_exporter=with_npu_exporter)
    return {(sample.name, sample.labels): sample.value for sample in samples}


def test_a_chip_has_each_figure_that_npu_smi_prints():
    """Health, power, temperature, use of cores and HBM of a busy 910B2, in base units."""
    seen = values("info-24.1.0-910B2-4npu")

    assert seen["ascendd_chips", ()] == 4
    assert seen["ascendd_chip_info", ("3", "0", "910B2", "0000:02:00.0")] == 1
    assert {name: value for (name, labels), value in seen.items() if labels == ("0", "0")} == {
        "ascendd_chip_healthy": 1.0,
        "ascendd_chip_power_watts": 281.6,
        "ascendd_chip_temperature_celsius": 58.0,
        "ascendd_chip_utilization_ratio": 0.97,
        "ascendd_chip_memory_bytes": 65536 * 2**20,
        "ascendd_chip_memory_used_bytes": 61240 * 2**20,
    }


def test_the_names_of_npu_exporter_have_its_units_and_labels():
    """MB, per cent and W, with id, model_name and pcie_bus_info; no DDR figures where the chip has none."""
    seen = values("info-24.1.0-910B2-4npu", with_npu_exporter=True)

    labels = ("1", "910B2", "0000:01:00.0")
    assert seen["machine_npu_nums", ()] == 4
    assert {name.removeprefix("npu_chip_info_"): value for (name, own), value in seen.items() if own == labels} == {
        "name": 1.0,
        "health_status": 1.0,
        "power": 272.6,
        "temperature": 57.0,
        "utilization": 96.0,
        "hbm_used_memory": 61207.0,
        "hbm_total_memory": 65536.0,
    }


# npu-exporter's "Prometheus Metrics API" (MindCluster 7.3, dlug_api_004): each name taken from it, with its unit or values.
NPU_EXPORTER_UNITS = {
    "machine_npu_nums": "Chips",
    "npu_chip_info_name": "Always 1",
    "npu_chip_info_health_status": "1 healthy, 0 not",
    "npu_chip_info_power": "in W",
    "npu_chip_info_temperature": "in degrees Celsius",
    "npu_chip_info_utilization": "in per cent",
    "npu_chip_info_hbm_used_memory": "in MB",
    "npu_chip_info_hbm_total_memory": "in MB",
    "npu_chip_info_used_memory": "in MB",
    "npu_chip_info_total_memory": "in MB",
}
# The labels of a chip's series there. The three of containers are empty outside Kubernetes, which is the same as absent;
# the id of a die is not among what `npu-smi info` prints.
NPU_EXPORTER_LABELS = {"id", "model_name", "vdie_id", "pcie_bus_info", "namespace", "pod_name", "container_name"}
LEFT_OUT = {"vdie_id", "namespace", "pod_name", "container_name"}


def test_each_name_of_npu_exporter_is_as_it_documents_it():
    """Name by name the kind, the unit, and its labels without those that a host has no value for."""
    declared = {spec.name: spec for spec in NPU_EXPORTER_METRICS}

    assert declared.keys() == NPU_EXPORTER_UNITS.keys()
    for name, spec in declared.items():
        theirs = {"machine_npu_nums": set(), "npu_chip_info_name": NPU_EXPORTER_LABELS - {"model_name"} | {"name"}}
        assert spec.kind is MetricKind.GAUGE, name
        assert NPU_EXPORTER_UNITS[name] in spec.help, name
        assert set(spec.labels) == theirs.get(name, NPU_EXPORTER_LABELS) - LEFT_OUT, name


def test_chips_of_other_layouts_have_their_use_of_cores():
    """A 950 prints NPU Util(%) where others print AICore(%); a die of A3 is a chip of its own."""
    assert values("info-26.1.0-950")["ascendd_chip_utilization_ratio", ("0", "0")] == 0.0
    dies = values("info-25.2.1-910_93", with_npu_exporter=True)
    assert dies["ascendd_chips", ()] == 4
    assert {labels[0] for name, labels in dies if name == "npu_chip_info_temperature"} == {"0", "1", "2", "3"}


def test_any_word_but_ok_is_unhealthy():
    """A chip with Warning, Alarm or Critical is 0, and one with OK is 1."""
    recording = "abn-health-warning-alarm-critical"
    words = {
        (str(chip.npu_id), str(chip.chip_id)): chip.health
        for chip in parse_info(next(RECORDINGS.glob(recording + "*")).read_text()).chips
    }
    seen = values(recording)

    assert set(words.values()) >= {"OK", "Warning", "Alarm", "Critical"}
    assert {labels: seen["ascendd_chip_healthy", labels] for labels in words} == {
        labels: float(word == "OK") for labels, word in words.items()
    }


@pytest.mark.parametrize("path", sorted(RECORDINGS.glob("info-*.txt")), ids=lambda path: path.stem)
def test_every_recording_makes_a_page(path):
    """Whatever release and chip: each sample is declared and no series comes twice."""
    samples = chip_samples(parse_info(path.read_text()), with_npu_exporter=True)
    page = Exposition("")
    page.replace(samples)

    declared = {spec.name: len(spec.labels) for spec in (*CHIP_METRICS, *NPU_EXPORTER_METRICS)}
    assert all(declared[sample.name] == len(sample.labels) for sample in samples)
    assert len({(sample.name, sample.labels) for sample in samples}) == len(samples)
    assert b"ascendd_chip_temperature_celsius{" in page.render()


def host(tmp_path, script):
    """Return a host whose npu-smi is `script`, and its environment."""
    tool = tmp_path / "usr/local/bin/npu-smi"
    tool.parent.mkdir(parents=True, exist_ok=True)
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    (tmp_path / ".fake-host").write_text("{}")
    return HostFiles(str(tmp_path)), {"XDG_RUNTIME_DIR": str(tmp_path / "run")}


def test_a_tool_that_fails_takes_its_figures_with_it(tmp_path):
    """After a good reading a failed one shows no chip, readable 0 and a count; the next good one is back."""
    recording = next(RECORDINGS.glob("info-24.1.1-910B4*"))
    files, environ = host(tmp_path, f"cat {recording}")
    reader = ChipReader(files, environ, "never")
    good = {sample.name: sample.value for sample in reader.read()}
    host(tmp_path, "echo 'dcmi module initialize failed. ret is -8005'; exit 187")
    bad = {(sample.name, sample.labels): sample.value for sample in reader.read()}
    host(tmp_path, f"cat {recording}")
    again = {(sample.name, sample.labels): sample.value for sample in reader.read()}

    assert (good["ascendd_chips_readable"], good["ascendd_chips"]) == (1.0, 2.0)
    assert bad["ascendd_chips_readable", ()] == 0.0
    assert not any(
        name.startswith(("ascendd_chip_power", "ascendd_chips_t")) or name == "ascendd_chips" for name, _ in bad
    )
    assert again["ascendd_chips_readable", ()] == 1.0
    assert again["ascendd_chip_reads_total", ("ok",)] == 2.0
    assert again["ascendd_chip_reads_total", ("failed",)] == 1.0


@pytest.mark.parametrize(("when", "taken", "there"), [
    ("auto", False, True), ("auto", True, False), ("always", True, True), ("never", False, False),
])  # fmt: skip
def test_the_names_of_npu_exporter_are_there_once(tmp_path, when, taken, there):
    """Auto shows them while no npu-exporter runs; always and never decide by hand."""
    files, environ = host(tmp_path, f"cat {next(RECORDINGS.glob('info-24.1.1-910B4*'))}")

    names = {sample.name for sample in ChipReader(files, environ, when, lambda: taken).read()}

    assert ("npu_chip_info_power" in names) is there
    assert "ascendd_chip_power_watts" in names


def test_an_npu_exporter_is_known_by_its_process(tmp_path):
    """A process of its name counts, whatever address it listens on; others do not."""
    files, _ = host(tmp_path, "true")
    for pid, name in (("17", "bash"), ("self", "npu-exporter")):
        (tmp_path / "proc" / pid).mkdir(parents=True)
        (tmp_path / "proc" / pid / "comm").write_text(f"{name}\n")
    nobody = "http://127.0.0.1:9/metrics"

    before = npu_exporter_runs(files, nobody)
    (tmp_path / "proc/17/comm").write_text("npu-exporter\n")

    assert not before
    assert npu_exporter_runs(files, nobody)
