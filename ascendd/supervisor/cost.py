"""Costs: what the instance has cost since its start, and what a million tokens of each model cost in the last hour."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

from ascendd.cost.power import Power, PowerMeter
from ascendd.cost.tariff import Tariff, Work, cost_per_million
from ascendd.cost.what_if import Seen, table
from ascendd.errors import UsageError
from ascendd.host.files import HostFiles
from ascendd.ipc.messages import Sample
from ascendd.supervisor.runtime import Runtime

_EVERY_S = 10.0
_WINDOW_S = 3600.0
_TOKENS = "ascendd_model_tokens_total"


@dataclass(frozen=True)
class _Reading:
    at_s: float
    cost: float
    work: dict[str, Work]


class Costs:
    """Adds up power x price and the hardware's share while the instance runs; nothing without cost.price_per_kwh."""

    def __init__(self, runtime: Runtime, files: HostFiles) -> None:
        self._run = runtime
        section = runtime.config.cost
        self._tariff: Tariff | None = None
        if section.price_per_kwh is not None:
            self._tariff = Tariff(section.price_per_kwh, section.hardware_price, section.amortisation_years)
        self._meter = PowerMeter(files, section.power_w, section.base_power_w)
        self._power: Power | None = None
        self._busy: tuple[float, float] | None = None
        self._readings: deque[_Reading] = deque()
        self._total = 0.0

    def on_tick(self, now_s: float) -> None:
        """Read the power where it is due and go on with the sums; `now_s` is monotonic seconds."""
        if self._tariff is None or (self._readings and now_s - self._readings[-1].at_s < _EVERY_S):
            return
        board = self._run.board
        chips_w = board.chips_power_w(self._devices())
        if chips_w is None and self._run.config.cost.power_w is None and self._run.engine_facts.get("device") != "cpu":
            return  # the power of an accelerator is nothing that its host's CPU could tell
        power = self._meter.read(chips_w, self._busy_cores(now_s))
        before, self._power = self._power, power
        if self._readings:
            self._total += self._tariff.of_span(power.watts, now_s - self._readings[-1].at_s)
        self._readings.append(_Reading(now_s, self._total, _work(board.totals())))
        while now_s - self._readings[0].at_s > _WINDOW_S:
            self._readings.popleft()
        board.set_costs(power, before, self._run.config.cost.currency, self._total, self._prices())

    def report(self) -> dict[str, Any]:
        """Return what `ascendd cost` shows. Raises UsageError where the file has no price."""
        if self._tariff is None:
            raise UsageError(
                "cost.price_per_kwh is not set, so nobody knows what this instance costs",
                remedy="Write cost: {price_per_kwh: 0.25, hardware_price: 20000} into its file and restart it.",
            )
        if self._power is None:
            raise UsageError(
                "no power is known yet",
                remedy="Ask again once live checks were made (every 5 minutes), or write cost.power_w.",
            )
        section, prices = self._run.config.cost, self._prices()
        span_s = self._readings[-1].at_s - self._readings[0].at_s
        models = [
            {
                "model": name,
                "prompt_tokens": round(work.prompt),
                "generated_tokens": round(work.generated),
                "cost_per_million_tokens": prices.get(name),
            }
            for name, work in sorted(self._window().items())
        ]
        return {
            "currency": section.currency,
            "power_w": round(self._power.watts, 1),
            "power_source": self._power.source,
            "cost_per_hour": self._tariff.per_hour(self._power.watts),
            "hardware_per_hour": self._tariff.hardware_per_hour,
            "cost_total": self._total,
            "window_s": round(span_s, 1),
            "models": models,
            "what_if": [asdict(row) for row in self._what_if()],
        }

    def _devices(self) -> tuple[int, ...]:
        run = self._run
        if run.placement is not None:
            return tuple(run.placement.devices)
        parallel = run.config.parallel
        world = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
        return tuple(range(world) if parallel.devices is None else parallel.devices)

    def _busy_cores(self, now_s: float) -> float:
        used_s = self._run.board.cpu_seconds()
        before, self._busy = self._busy, (now_s, used_s)
        return 0.0 if before is None or now_s <= before[0] else max(0.0, used_s - before[1]) / (now_s - before[0])

    def _window(self) -> dict[str, Work]:
        first, last = self._readings[0].work, self._readings[-1].work
        none = Work(0.0, 0.0)
        return {
            name: Work(
                work.prompt - first.get(name, none).prompt,
                work.generated - first.get(name, none).generated,
            )
            for name, work in last.items()
        }

    def _prices(self) -> dict[str, float]:
        return cost_per_million(self._readings[-1].cost - self._readings[0].cost, self._window())

    def _what_if(self) -> list[Any]:
        window = self._window()
        generated = sum(work.generated for work in window.values())
        if not generated:
            return []
        samples = {s.name: s for s in self._run.board.totals() if not s.labels}
        facts = self._run.engine_facts
        prompt, answer = (_mean(samples.get(f"ascendd_request_{kind}_tokens")) for kind in ("prompt", "generation"))
        steps = _value(samples, "ascendd_engine_steps_total")
        removed = sum(s.value for s in self._run.board.totals() if s.name == "ascendd_preprocess_removed_tokens_total")
        return table(
            Seen(
                cost_per_million=(self._readings[-1].cost - self._readings[0].cost) / generated * 1e6,
                batch=max(1.0, _value(samples, "ascendd_engine_generation_tokens_total") / steps) if steps else 0.0,
                weight_bytes=float(facts.get("weights_bytes", 0)),
                context_bytes=float(facts.get("kv_bytes_per_token", 0)) * (prompt + answer / 2),
                prompt_tokens=_value(samples, "ascendd_engine_prompt_tokens_total"),
                generated_tokens=_value(samples, "ascendd_engine_generation_tokens_total"),
                cached_tokens=_value(samples, "ascendd_engine_prefix_cache_hits_total"),
                removed_tokens=removed,
            )
        )


def _work(samples: list[Sample]) -> dict[str, Work]:
    totals: dict[str, dict[str, float]] = {}
    for sample in samples:
        if sample.name == _TOKENS:
            model, kind = sample.labels
            totals.setdefault(model, {})[kind] = sample.value
    return {model: Work(kinds.get("prompt", 0.0), kinds.get("generated", 0.0)) for model, kinds in totals.items()}


def _mean(sample: Sample | None) -> float:
    count = 0 if sample is None else sum(sample.buckets)
    return 0.0 if sample is None or not count else sample.value / count


def _value(samples: dict[str, Sample], name: str) -> float:
    sample = samples.get(name)
    return 0.0 if sample is None else sample.value
