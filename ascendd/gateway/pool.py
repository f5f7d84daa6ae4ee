"""The instances as the gateway knows them, and which of them is tried first for a request. No I/O."""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ascendd.gateway.request_facts import RequestFacts
from ascendd.gateway.schema import BalanceSection, GatewayConfig, InstanceEntry, served_models


@dataclass
class Instance:
    """One server and what is known of it; `outstanding_tokens` are those of its open requests, by estimate."""

    entry: InstanceEntry
    models: frozenset[str] = field(init=False)
    modalities: frozenset[str] = field(init=False)
    name_bytes: bytes = field(init=False)
    is_up: bool = False
    reason: str = "not asked yet"
    # Probes in a row that got no answer in time.
    num_silent: int = 0
    # Loop time until which it said that it takes no more.
    full_until_s: float = -math.inf
    outstanding_tokens: int = 0
    num_open: int = 0
    # Of one that is loaded on demand (gateway.on_demand), in loop time.
    used_at_s: float = -math.inf
    is_loading: bool = False
    loading_since_s: float = -math.inf
    is_stopping: bool = False
    failed_at_s: float = -math.inf

    def __post_init__(self) -> None:
        self.models = frozenset(served_models(self.entry))
        self.modalities = frozenset(self.entry.modalities)
        self.name_bytes = self.entry.name.encode()

    @property
    def name(self) -> str:
        """Its name in the file."""
        return self.entry.name

    def has_room(self, num_tokens: int, now_s: float) -> bool:
        """Whether it takes a request of `num_tokens`; one that does nothing always does."""
        limit = self.entry.max_outstanding_tokens
        fits = limit is None or not self.num_open or self.outstanding_tokens + num_tokens <= limit
        return fits and now_s >= self.full_until_s

    def begin(self, num_tokens: int) -> None:
        """Count a request."""
        self.num_open += 1
        self.outstanding_tokens += num_tokens

    def end(self, num_tokens: int, now_s: float) -> None:
        """Count it no more."""
        self.used_at_s = now_s
        self.num_open -= 1
        self.outstanding_tokens -= num_tokens


class Attempt(NamedTuple):
    """One thing to try: `model` at `instance`."""

    instance: Instance
    model: str


class Candidates(NamedTuple):
    """Attempts in their order, and why there are none where there are none."""

    attempts: tuple[Attempt, ...]
    num_serving: int = 0
    num_up: int = 0
    lacks_modality: bool = False


class InstancePool:
    """All instances of a configuration."""

    def __init__(self, config: GatewayConfig, earlier: InstancePool | None = None) -> None:
        self._balance: BalanceSection = config.balance
        before: tuple[Instance, ...] = () if earlier is None else earlier.instances
        known = {instance.name: instance for instance in before}
        self.instances: tuple[Instance, ...] = tuple(
            # What has not changed keeps its state over a reload, and its open requests are still counted.
            known[entry.name] if entry.name in known and known[entry.name].entry == entry else Instance(entry)
            for entry in config.instances
        )

    def candidates(self, models: Sequence[str], facts: RequestFacts, now_s: float) -> Candidates:
        """Return who may serve `facts`: models in their order, and for each the best instance first."""
        attempts: list[Attempt] = []
        num_serving = num_up = 0
        lacks_modality = False
        num_tokens = facts.outstanding_tokens
        for model in models:
            free: list[Instance] = []
            for instance in self.instances:
                if model not in instance.models:
                    continue
                if not facts.modalities <= instance.modalities:
                    lacks_modality = True
                    continue
                num_serving += 1
                if instance.is_up and not instance.is_stopping:
                    num_up += 1
                    if instance.has_room(num_tokens, now_s):
                        free.append(instance)
            attempts += [Attempt(instance, model) for instance in self._ordered(free, facts.prefix)]
        return Candidates(tuple(attempts), num_serving, num_up, lacks_modality and not num_serving)

    def _ordered(self, free: Sequence[Instance], prefix: str) -> list[Instance]:
        """Return the least loaded first, but before it the one that this prefix sticks to, within the slack."""
        if len(free) < 2:
            return list(free)
        ordered = sorted(free, key=_outstanding)
        if prefix and self._balance.sticky_prefix_chars:
            sticky = rendezvous(ordered, prefix)
            if sticky.outstanding_tokens - ordered[0].outstanding_tokens <= self._balance.sticky_slack_tokens:
                ordered.remove(sticky)
                ordered.insert(0, sticky)
        return ordered


_outstanding = operator.attrgetter("outstanding_tokens")


def rendezvous(instances: Iterable[Instance], prefix: str) -> Instance:
    """Return the instance that `prefix` belongs to; when one leaves, only its own prefixes move."""
    data = hashlib.blake2b(prefix.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return max(instances, key=lambda instance: hashlib.blake2b(data + instance.name_bytes, digest_size=8).digest())
