"""Rules, compiled once and asked for every request: the first that matches names the models to try. Pure."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ascendd.gateway.condition import parse_condition
from ascendd.gateway.request_facts import RequestFacts
from ascendd.gateway.schema import AUTO, COMPARED, GatewayConfig, RuleEntry, as_names, served_models

# Names of the two ways that no rule of the file decides; no rule in a file can have them, for the brackets.
BY_NAME = "(model)"
NO_RULE = "(none)"


@dataclass(frozen=True)
class Condition:
    """One key of `when`: what is written, and whether a request keeps it."""

    key: str
    written: str
    holds: Callable[[RequestFacts], bool]
    value: Callable[[RequestFacts], object]


@dataclass(frozen=True)
class Rule:
    """One compiled rule."""

    name: str
    conditions: tuple[Condition, ...]
    models: tuple[str, ...]
    refuse: str | None
    dry_run: bool

    @property
    def by_name(self) -> Condition:
        """The condition on the model's name, which every rule has."""
        return self.conditions[0]

    @property
    def others(self) -> tuple[Callable[[RequestFacts], bool], ...]:
        """What has to hold beside it."""
        return tuple(condition.holds for condition in self.conditions[1:])


class Choice(NamedTuple):
    """What the rules say of a request: models in the order to try, or a refusal; `shadowed` dry runs matched, too."""

    rule: str
    models: tuple[str, ...] = ()
    refuse: str | None = None
    shadowed: tuple[str, ...] = ()


_Asked = tuple[tuple[Rule, tuple[Callable[[RequestFacts], bool], ...]], ...]


class RuleBook:
    """The rules of one configuration."""

    def __init__(self, config: GatewayConfig) -> None:
        self.rules = tuple(compile_rule(entry) for entry in config.rules)
        self.served = {name: None for entry in config.instances for name in served_models(entry)}
        named = {name for entry in config.rules for name in as_names(entry.when.model)}
        # Most rules fall by the model's name, so the names that are known find theirs without asking one by one.
        self._of_model = {name: self._asked_of(name) for name in {AUTO, *self.served, *named}}

    def choose(self, facts: RequestFacts) -> Choice:
        """
        Return the choice of the first rule that matches.

        A model that is served and that no rule speaks of is its own choice: nothing else ever answers for it.
        """
        shadowed: list[str] = []
        asked = self._of_model.get(facts.model)
        for rule, others in self._asked_of(facts.model) if asked is None else asked:
            # Plain loops: this runs for every rule of every request, and a generator costs more than the conditions.
            for holds in others:
                if not holds(facts):
                    break
            else:
                if not rule.dry_run:
                    return Choice(rule.name, rule.models, rule.refuse, tuple(shadowed))
                shadowed.append(rule.name)
        if facts.model in self.served:
            return Choice(BY_NAME, (facts.model,), shadowed=tuple(shadowed))
        return Choice(NO_RULE, shadowed=tuple(shadowed))

    def _asked_of(self, model: str) -> _Asked:
        """Return the rules whose condition on the name holds for `model`, with their other conditions."""
        facts = RequestFacts(model, {}, False, frozenset(), "", "")
        return tuple((rule, rule.others) for rule in self.rules if rule.by_name.holds(facts))

    def explain(self, facts: RequestFacts) -> list[tuple[Rule, list[tuple[Condition, object, bool]]]]:
        """Return every rule with each of its conditions, the request's value and whether it holds."""
        return [
            (rule, [(condition, condition.value(facts), condition.holds(facts)) for condition in rule.conditions])
            for rule in self.rules
        ]


def compile_rule(entry: RuleEntry) -> Rule:
    """Return `entry` with its conditions as functions; the cheapest are asked first."""
    when = entry.when
    conditions = [_name_condition("model", as_names(when.model) or [AUTO], lambda facts: facts.model)]
    if when.stream is not None:
        wanted = when.stream
        conditions.append(Condition("stream", str(wanted).lower(), lambda f: f.stream is wanted, lambda f: f.stream))
    for key in COMPARED:
        written = getattr(when, key)
        if written is not None:
            conditions.append(_number_condition(key, written))
    if when.modality is not None:
        kind = when.modality
        conditions.append(
            Condition("modality", kind, lambda f: kind in f.modalities, lambda f: ", ".join(sorted(f.modalities)))
        )
    if when.key is not None:
        conditions.append(_name_condition("key", as_names(when.key), lambda facts: facts.key))
    return Rule(entry.name, tuple(conditions), tuple(as_names(entry.to)), entry.refuse, entry.dry_run)


def _number_condition(key: str, written: str | float) -> Condition:
    check = parse_condition(written)

    def holds(facts: RequestFacts) -> bool:
        numbers = facts.numbers
        return key in numbers and check(numbers[key])

    return Condition(key, str(written), holds, lambda facts: facts.numbers.get(key))


def _name_condition(key: str, names: Sequence[str], read: Callable[[RequestFacts], str]) -> Condition:
    exact = frozenset(name for name in names if not set(name) & set("*?["))
    wild = [re.compile(fnmatch.translate(name)) for name in names if name not in exact]

    if not wild:
        return Condition(key, " or ".join(names), lambda facts: read(facts) in exact, read)

    def holds(facts: RequestFacts) -> bool:
        value = read(facts)
        return value in exact or any(pattern.match(value) for pattern in wild)

    return Condition(key, " or ".join(names), holds, read)
