"""What tokens cost: tariff, power and the table of what else they could cost."""

from __future__ import annotations

import pytest

from ascendd.cost.power import PowerMeter
from ascendd.cost.tariff import Tariff, Work, cost_per_million
from ascendd.cost.what_if import Seen, table
from ascendd.host.files import HostFiles


def test_an_hour_costs_its_energy_and_its_share_of_the_hardware():
    """1 kW at 0.30 and 35,064 over 4 years: 0.30 + 1 an hour, and half an hour half of that."""
    tariff = Tariff(0.30, 35_064.0, 4.0)

    assert tariff.per_hour(1000) == pytest.approx(1.30)
    assert tariff.hardware_per_hour == pytest.approx(1.0)
    assert tariff.of_span(1000, 1800) == pytest.approx(0.65)


def test_a_cost_falls_to_models_by_the_tokens_they_had_computed():
    """Who sends three times the prompt tokens for the same answers pays more for each; together they pay all."""
    work = {"base": Work(1000, 1000), "long": Work(5000, 1000), "idle": Work(0, 0)}

    prices = cost_per_million(8.0, work)

    assert prices == {"base": pytest.approx(2000), "long": pytest.approx(6000)}
    assert sum(prices[name] * work[name].generated / 1e6 for name in prices) == pytest.approx(8.0)


def test_prompts_of_a_model_without_answers_are_borne_by_the_others():
    """A model that generated nothing has no price, and no cost is lost for it."""
    prices = cost_per_million(8.0, {"a": Work(0, 1000), "b": Work(500, 0)})

    assert prices == {"a": pytest.approx(8000)}
    assert cost_per_million(8.0, {}) == {}


class Clock:
    """A clock that is set by hand."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        """Return the time."""
        return self.now_s


def meter(tmp_path, clock, **watts):
    """Return a meter on a host of files, and a function that sets RAPL's counters."""

    def energy(*microjoules):
        for number, value in enumerate(microjoules):
            folder = tmp_path / "sys/class/powercap" / f"intel-rapl:{number}"
            (folder / f"intel-rapl:{number}:0").mkdir(parents=True, exist_ok=True)
            (folder / "energy_uj").write_text(f"{value}\n")

    (tmp_path / ".fake-host").write_text("{}")
    return PowerMeter(HostFiles(str(tmp_path)), watts.get("configured"), watts.get("base", 0.0), clock), energy


def test_what_the_file_says_is_taken_first(tmp_path):
    """A configured power counts whatever else could be measured."""
    read, _ = meter(tmp_path, Clock(), configured=900.0, base=50.0)

    assert read.read(281.0, 4.0) == (900.0, "configured")


def test_chips_are_taken_before_the_cpu(tmp_path):
    """The chips of the instance and the host around them."""
    read, energy = meter(tmp_path, Clock(), base=200.0)
    energy(1, 1)

    assert read.read(281.5, 4.0) == (481.5, "npu-smi")


def test_rapl_is_the_energy_of_all_packages_since_the_last_reading(tmp_path):
    """Two packages that used 300 J and 200 J in 10 s draw 50 W; the first reading and a counter's wrap are estimates."""
    clock = Clock()
    read, energy = meter(tmp_path, clock)
    energy(1_000_000, 5_000_000)
    first = read.read(None, 2.0)
    clock.now_s += 10
    energy(301_000_000, 205_000_000)
    second = read.read(None, 2.0)
    clock.now_s += 10
    energy(5, 405_000_000)

    assert first == (16.0, "estimate")
    assert second == (pytest.approx(50.0), "rapl")
    assert read.read(None, 2.0).source == "estimate"


SEEN = Seen(
    cost_per_million=10.0, batch=8.0, weight_bytes=14e9, context_bytes=0.25e9,
    prompt_tokens=6000, generated_tokens=2000, cached_tokens=2000, removed_tokens=600,
)  # fmt: skip


def test_a_larger_batch_shares_the_weights():
    """At a batch of 8, a token reads 1.75 + 0.25 GB; at 1 it reads 14.25, and at 128 0.36: costs go with that."""
    rows = {row.what: row.cost_per_million for row in table(SEEN)}

    assert rows["as it is"] == 10.0
    assert rows["mean batch 1 in place of 8.0"] == pytest.approx(71.25)
    assert rows["mean batch 8 in place of 8.0"] == pytest.approx(10.0)
    assert rows["mean batch 128 in place of 8.0"] == pytest.approx(10 * 0.359375 / 2)
    assert rows["weights of half the size (int8 for fp16)"] == pytest.approx(10 * 1.125 / 2)


def test_cached_and_removed_tokens_are_counted():
    """2,000 cached of 8,000 tokens: without the cache 6,000 become 8,000; preprocessing saved 600 of 6,600."""
    rows = {row.what: row for row in table(SEEN)}

    assert rows["without the prefix cache"].cost_per_million == pytest.approx(10 * 8000 / 6000)
    assert rows["without preprocessing"].cost_per_million == pytest.approx(11.0)
    assert rows["without preprocessing"].basis == "600 tokens more, counted"


def test_what_is_not_known_is_not_estimated():
    """Without the size of the weights there are no rows of batch and dtype, and without savings none of those."""
    seen = Seen(10.0, 8.0, 0.0, 0.0, 100, 100, 0, 0)

    assert [row.what for row in table(seen)] == ["as it is"]


def test_this_host_has_a_source():
    """On the machine that runs the tests the second reading has some power, whatever the source."""
    read = PowerMeter(HostFiles(), None, 5.0)
    read.read(None, 1.0)

    power = read.read(None, 1.0)
    assert power.watts > 0
    assert power.source in ("rapl", "estimate")
