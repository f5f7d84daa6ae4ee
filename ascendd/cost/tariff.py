"""Tariff: what an hour of serving costs, and how the cost of a span falls to models. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

HOURS_A_YEAR = 8766.0


@dataclass(frozen=True)
class Tariff:
    """Price of energy a kWh, price of the hardware and the years it is written off over; one currency."""

    price_per_kwh: float
    hardware_price: float
    amortisation_years: float

    @property
    def hardware_per_hour(self) -> float:
        """What the hardware costs an hour, whether it serves or not."""
        return self.hardware_price / (self.amortisation_years * HOURS_A_YEAR)

    def per_hour(self, power_w: float) -> float:
        """Return what an hour at `power_w` watts costs."""
        return self.price_per_kwh * power_w / 1000 + self.hardware_per_hour

    def of_span(self, power_w: float, seconds: float) -> float:
        """Return what `seconds` at `power_w` watts cost."""
        return self.per_hour(power_w) * seconds / 3600


@dataclass(frozen=True)
class Work:
    """Tokens of one model or adapter in a span: prompt tokens that were computed, and generated ones."""

    prompt: float
    generated: float


def cost_per_million(cost: float, work: Mapping[str, Work]) -> dict[str, float]:
    """
    Return for each name what a million of its generated tokens cost.

    The cost of a span falls to names by the tokens that they had computed, prompts included: who sends long prompts
    for short answers pays for them. A name that generated nothing has no price, and what it had computed is borne by
    the others, since somebody must.
    """
    paying = {name: one for name, one in work.items() if one.generated > 0}
    computed = sum(one.prompt + one.generated for one in paying.values())
    return {name: cost * (one.prompt + one.generated) / computed / one.generated * 1e6 for name, one in paying.items()}
