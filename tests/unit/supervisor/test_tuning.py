"""The loop that asks a tuning policy and sends the engine its limits."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ascendd.config.schema import EngineSection, InstanceConfig, ModelSection, TuningSection
from ascendd.ipc.messages import Sample
from ascendd.supervisor.phase import Phase
from ascendd.supervisor.tuning import Tuning


class Instance:
    """What the loop sees of an instance: figures that say that many wait, and what it orders and counts."""

    def __init__(self):
        self.config = InstanceConfig(
            model=ModelSection(path="m"),
            engine=EngineSection(max_num_seqs=128),
            tuning=TuningSection(enabled=True, policy="queue", interval_s=1.0),
        )
        self.phase = Phase.SERVING
        self.limit = 64
        self.orders, self.counted = [], []
        self.table = SimpleNamespace(send=lambda _role, message: self.orders.append(message.max_num_seqs))
        self.board = SimpleNamespace(
            totals=self.totals, count_tuning=lambda direction, limits, _reason: self.counted.append((direction, limits))
        )
        self.log = SimpleNamespace(info=lambda *_args, **_more: None)

    def totals(self):
        """Return the engine's figures."""
        return [
            Sample("ascendd_engine_sequences_waiting", 30.0),
            Sample("ascendd_engine_sequence_limit", float(self.limit)),
            Sample("ascendd_engine_prefill_token_limit", 512.0),
            Sample("ascendd_engine_step_token_limit", 2048.0),
        ]


@pytest.fixture
def instance():
    """An instance of up to 128 sequences, with 64 in force."""
    return Instance()


def test_an_order_is_given_once_until_it_is_in_force(instance):
    """While the engine's figures show the old limit nothing is decided again; then the next step up follows."""
    tuning = Tuning(instance)

    for second in range(10):
        tuning.on_tick(float(second))
    before = list(instance.orders)
    instance.limit = 72
    for second in range(10, 13):
        tuning.on_tick(float(second))

    assert before == [72]
    assert instance.orders == [72, 80]
    assert [direction for direction, _ in instance.counted] == ["up", "up"]


def test_an_order_that_never_comes_into_force_is_given_up(instance):
    """An engine that was started again has its own limit: after 30 s the loop decides anew from there."""
    tuning = Tuning(instance)

    for second in range(60):
        tuning.on_tick(float(second))

    assert instance.orders == [72, 72]
