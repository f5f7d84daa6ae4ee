"""The table of `tests/bench/peers.py`: what it makes of the figures."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[1] / "bench"


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The table's module, imported as the bench imports it."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("peer_table")


def _figures(speed: float) -> dict[str, float]:
    return {"tokens_per_s": speed, "prompt_tokens_per_s": 10 * speed, "first_p50_s": 1 / speed}


def test_a_ratio_is_the_median_of_the_rounds_that_both_sides_saw(table: ModuleType, tmp_path: Path) -> None:
    """A round in which only one of two sides was asked, counts in no ratio."""
    late = "8+long"
    kept = [
        *[table.Measured(number, late, "ascendd fp32", _figures(speed)) for number, speed in enumerate((30, 60, 900))],
        *[table.Measured(number, late, "vllm fp32", _figures(speed)) for number, speed in enumerate((10, 30))],
    ]

    rows = {row["side"]: row for row in table.print_table(kept, tmp_path)}

    assert rows["ascendd fp32"]["tokens_per_s"] == 60
    assert rows["ascendd fp32"]["ratio_to_vllm fp32"]["tokens_per_s"] == 2.5
    assert rows["vllm fp32"]["ratio_to_vllm fp32"]["tokens_per_s"] == 1.0


def test_the_plot_has_a_bar_for_each_row(table: ModuleType, tmp_path: Path) -> None:
    """Every side of every case is drawn, the fastest of a case over the whole width."""
    kept = [
        table.Measured(0, "8+long", side, _figures(speed)) for side, speed in (("ascendd fp32", 40), ("vllm fp32", 10))
    ]

    drawn = table.svg(table.print_table(kept, tmp_path))

    assert drawn.count("<rect") == 2
    assert 'width="500"' in drawn
    assert 'width="125"' in drawn


def test_peers_are_given_the_same_prompts(table: ModuleType) -> None:
    """A case has the same token ids each time, as many as it says."""
    case = importlib.import_module("peer_sides").CASES["16"]

    assert case.prompts == case.prompts
    assert len(case.prompts) == 16
    assert all(24 <= len(prompt) <= 320 for prompt in case.prompts)
