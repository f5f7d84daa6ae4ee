"""Who is tried first: up, free, knowing the prefix, least loaded; and what is told where nobody is."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ascendd.errors import InstanceUnavailable, InvalidRequest, QueueFull
from ascendd.gateway.dispatcher import refusal
from ascendd.gateway.pool import Candidates, InstancePool
from ascendd.gateway.request_facts import RequestFacts, read_facts
from ascendd.gateway.rules import Choice
from ascendd.gateway.schema import load_text

FACTS = read_facts({"prompt": "hello", "max_tokens": 100}, key="", prefix_chars=0)


def pool(*entries: str, balance: str = "{}") -> InstancePool:
    """Instances named by `entries`, all up."""
    listed = ", ".join(f"{{url: 'http://127.0.0.1:1', {entry}}}" for entry in entries)
    made = InstancePool(load_text(f"instances: [{listed}]\nbalance: {balance}"))
    for instance in made.instances:
        instance.is_up = True
    return made


def order(made: InstancePool, *models: str, facts: RequestFacts = FACTS, now_s: float = 0.0) -> list[str]:
    """Names in the order in which they would be tried."""
    return [attempt.instance.name for attempt in made.candidates(models, facts, now_s).attempts]


def test_models_are_tried_in_their_order() -> None:
    """Load decides among instances of one model only."""
    made = pool("name: a, models: [m]", "name: b, models: [m]", "name: c, models: [k]")
    made.instances[0].begin(500)

    assert order(made, "m", "k") == ["b", "a", "c"]
    assert order(made, "k", "m") == ["c", "b", "a"]


def test_what_is_down_or_full_is_not_tried() -> None:
    """Full is what its limit says, or what it said itself until a time."""
    made = pool("name: a, models: [m]", "name: b, models: [m], max_outstanding_tokens: 150", "name: c, models: [m]")
    a, b, c = made.instances
    a.is_up = False
    b.begin(100)
    c.full_until_s = 10.0

    assert order(made, "m") == []
    assert order(made, "m", now_s=10.0) == ["c"]
    b.end(100, 5.0)
    assert order(made, "m") == ["b"]


def test_one_request_larger_than_the_limit_is_taken_when_nothing_else_runs() -> None:
    """A limit keeps requests from piling up, and shuts none out for good."""
    made = pool("name: a, models: [m], max_outstanding_tokens: 10")

    assert order(made, "m") == ["a"]


def prefixed(text: str) -> RequestFacts:
    """Facts of a prompt that begins with `text`."""
    return read_facts({"prompt": text, "max_tokens": 100}, key="", prefix_chars=100)


def test_equal_prefixes_go_to_one_instance_and_others_spread() -> None:
    """Of 300 prefixes each of three instances gets its share; asked again, each goes where it went."""
    made = pool("name: a, models: [m]", "name: b, models: [m]", "name: c, models: [m]")
    first = [order(made, "m", facts=prefixed(f"system {n}"))[0] for n in range(300)]
    again = [order(made, "m", facts=prefixed(f"system {n}"))[0] for n in range(300)]

    assert first == again
    assert min(Counter(first).values()) > 60


def test_a_prefix_leaves_an_instance_that_has_too_much_to_do() -> None:
    """Within the slack it stays, beyond it the least loaded one is first."""
    made = pool("name: a, models: [m]", "name: b, models: [m]", balance="{sticky_slack_tokens: 1000}")
    facts = prefixed("system")
    home = next(instance for instance in made.instances if instance.name == order(made, "m", facts=facts)[0])
    home.begin(1000)
    assert order(made, "m", facts=facts)[0] == home.name
    home.begin(1)

    assert order(made, "m", facts=facts)[0] != home.name


@given(st.lists(st.text(min_size=1), min_size=1, max_size=20), st.integers(0, 3))
def test_only_prefixes_of_an_instance_that_leaves_move(prefixes: list[str], leaving: int) -> None:
    """The others stay where their cache is."""
    made = pool(*(f"name: i{n}, models: [m]" for n in range(4)))
    before = [order(made, "m", facts=prefixed(prefix))[0] for prefix in prefixes]
    made.instances[leaving].is_up = False
    after = [order(made, "m", facts=prefixed(prefix))[0] for prefix in prefixes]

    assert all(old == new for old, new in zip(before, after, strict=True) if old != f"i{leaving}")


def test_a_reload_keeps_what_has_not_changed() -> None:
    """State and open requests stay with an instance whose entry is the same."""
    text = "instances: [{name: a, url: 'http://h:1'}, {name: b, url: 'http://h:2'}]"
    old = InstancePool(load_text(text))
    for instance in old.instances:
        instance.begin(7)
    new = InstancePool(load_text(text.replace("h:2", "h:3")), old)

    assert new.instances[0] is old.instances[0]
    assert new.instances[1].outstanding_tokens == 0


def test_audio_needs_an_instance_that_hears() -> None:
    """Text goes to both, audio to the one that says so."""
    body: dict[str, Any] = {"messages": [{"content": [{"type": "input_audio"}]}]}
    audio = read_facts(body, key="", prefix_chars=0)
    made = pool("name: a, models: [m]", "name: b, models: [m], modalities: [text, audio]")

    assert order(made, "m", facts=audio) == ["b"]
    assert len(order(made, "m")) == 2
    deaf = pool("name: a, models: [m]").candidates(["m"], audio, 0.0)
    error = refusal(Choice("r", ("m",)), deaf, audio)
    assert isinstance(error, InvalidRequest)
    assert "this request holds audio" in error.message


def test_down_and_full_are_told_apart() -> None:
    """503 where nobody is up, 429 where somebody is and is full; both say when to come back."""
    down = refusal(Choice("r", ("m",)), Candidates((), num_serving=1), FACTS)
    full = refusal(Choice("(model)", ("m",)), Candidates((), num_serving=2, num_up=1), FACTS)

    assert isinstance(down, InstanceUnavailable)
    assert "no instance that serves `m` (chosen by rule `r`) is up" in down.message
    assert isinstance(full, QueueFull)
    assert full.facts["retry_after_s"] == 2
