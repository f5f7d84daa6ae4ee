"""Who must leave so that an instance fits, and what is wrong with a file that asks for it."""

from __future__ import annotations

import pytest

from ascendd.errors import ConfigInvalid
from ascendd.gateway.on_demand import make_room
from ascendd.gateway.pool import Instance
from ascendd.gateway.schema import InstanceEntry, OnDemandSection, load_text


def instance(name: str, memory: str, *, used_at_s: float | None = None, num_open: int = 0) -> Instance:
    """One that is up since it has been used; None: not loaded."""
    section = OnDemandSection(unit=f"ascendd@{name}", memory=memory)
    made = Instance(InstanceEntry(name=name, url="http://h:1", on_demand=section))
    made.is_up, made.num_open = used_at_s is not None, num_open
    made.used_at_s = used_at_s or 0.0
    return made


def names(found: tuple[Instance, ...] | None) -> list[str] | None:
    """Their names."""
    return None if found is None else [item.name for item in found]


def test_the_longest_unused_ones_leave() -> None:
    """As many as it takes, the one that was not asked for the longest first."""
    old, newer, newest = (instance(f"i{at}", "10GiB", used_at_s=at) for at in (1.0, 2.0, 3.0))
    running = [newest, old, newer]

    assert names(make_room(running, instance("x", "10GiB"), "40GiB")) == []
    assert names(make_room(running, instance("x", "10GiB"), "39GiB")) == ["i1.0"]
    assert names(make_room(running, instance("x", "20GiB"), "30GiB")) == ["i1.0", "i2.0"]
    assert names(make_room(running, instance("x", "30GiB"), "30GiB")) == ["i1.0", "i2.0", "i3.0"]
    assert names(make_room(running, instance("x", "99GiB"), None)) == []


def test_open_requests_and_loads_are_not_disturbed() -> None:
    """One with open requests, and one that is being loaded, stay; then there is no room."""
    busy = instance("busy", "10GiB", used_at_s=1.0, num_open=1)
    loading = instance("loading", "10GiB")
    loading.is_loading = True
    idle = instance("idle", "10GiB", used_at_s=9.0)

    assert names(make_room([busy, idle], instance("x", "10GiB"), "20GiB")) == ["idle"]
    assert make_room([busy, loading], instance("x", "10GiB"), "20GiB") is None
    assert make_room([busy], instance("x", "15GiB"), "20GiB") is None


def test_what_always_runs_is_not_counted() -> None:
    """The budget is for instances on demand; others neither leave nor count."""
    steady = Instance(InstanceEntry(name="steady", url="http://h:1"))
    steady.is_up = True

    assert names(make_room([steady], instance("x", "10GiB"), "10GiB")) == []


@pytest.mark.parametrize(
    ("head", "section", "words"),
    [
        ("", "unit: --force", "is not the name of a unit"),
        ("", "unit: a b", "is not the name of a unit"),
        ("", "idle_s: 5", "$.instances[0].on_demand.unit: is required"),
        ("", "unit: ascendd@a, memory: lots", "$.instances[0].on_demand.memory"),
        ("on_demand_memory: 8GiB", "unit: ascendd@a", "is required beside on_demand_memory"),
        ("on_demand_memory: 8GiB", "unit: ascendd@a, memory: 9GiB", "is more than on_demand_memory"),
        ("on_demand_memory: much", "unit: ascendd@a, memory: 9GiB", "$.on_demand_memory"),
    ],
)
def test_a_bad_section_is_named(head: str, section: str, words: str) -> None:
    """Each slip is told with its path."""
    text = f"{head}\ninstances:\n  - {{name: a, url: 'http://h:1', on_demand: {{{section}}}}}\n"

    with pytest.raises(ConfigInvalid) as caught:
        load_text(text)
    assert words in str(caught.value)
