"""AdapterPool and SlotPool: no id twice, nothing in use evicted, no slot lost, whatever the order of calls."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ascendd.engine.lora.adapter_pool import AdapterPool, AdapterRecord
from ascendd.engine.lora.adapter_registry import AdapterRegistry, cache_key
from ascendd.engine.lora.slot_pool import SlotPool
from ascendd.errors import AdapterInvalid, ModelUnknown, QueueFull

NAMES = st.sampled_from("abcdefgh")


class Store:
    """Host memory played by a dict: id -> path; paths that begin with ! hold no adapter."""

    def __init__(self) -> None:
        self.held: dict[int, str] = {}
        self.seen: set[int] = set()

    def load_adapter(self, adapter_id: int, path: str) -> int:
        if path.startswith("!"):
            raise AdapterInvalid(f"{path} holds no adapter")
        assert adapter_id not in self.seen, "an id was used twice"
        self.seen.add(adapter_id)
        self.held[adapter_id] = path
        return 1

    def drop_adapter(self, adapter_id: int) -> None:
        del self.held[adapter_id]


class RegistryMachine(RuleBasedStateMachine):
    """Loads, unloads, uses and ends in any order, beside a model of what should be there."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        self.registry = AdapterRegistry(self.store, 3, "base")
        self.paths: dict[str, str] = {}
        self.uses: list[tuple[int, str]] = []

    @property
    def in_use(self) -> frozenset[int]:
        return frozenset(adapter_id for adapter_id, _ in self.uses)

    @rule(name=NAMES, version=st.integers(0, 9), is_bad=st.booleans())
    def load(self, name: str, version: int, is_bad: bool) -> None:
        path = f"{'!' if is_bad else ''}{name}{version}"
        names = self.registry.pool.names
        try:
            self.registry.load(name, path, self.in_use)
        except AdapterInvalid:
            assert is_bad or name in self.paths
            assert self.registry.pool.names == names
        except QueueFull:
            assert len(self.in_use) == 3, "room was refused though an adapter was idle"
            assert self.registry.pool.names == names
        else:
            assert not is_bad
            assert name not in self.paths
            self.paths[name] = path

    @rule(name=NAMES)
    def unload(self, name: str) -> None:
        if name in self.paths:
            self.registry.unload(name, self.in_use)
            del self.paths[name]
        else:
            with pytest.raises(ModelUnknown):
                self.registry.unload(name, self.in_use)

    @rule(name=NAMES)
    def use(self, name: str) -> None:
        try:
            adapter_id, _ = self.registry.acquire(name, self.in_use)
        except ModelUnknown:
            assert name not in self.paths
        except QueueFull:
            assert len(self.in_use) == 3
        else:
            assert self.store.held[adapter_id] == self.paths[name], "another adapter's weights were given out"
            self.uses.append((adapter_id, self.paths[name]))

    @rule(index=st.integers(0, 20))
    def end(self, index: int) -> None:
        if self.uses:
            self.uses.pop(index % len(self.uses))
            self.registry.collect(self.in_use)

    @invariant()
    def accounts_add_up(self) -> None:
        self.registry.pool.check_integrity()
        assert set(self.store.held) == self.registry.pool.resident_ids
        assert len(self.store.held) <= 3
        assert set(self.registry.pool.names) == set(self.paths)
        assert all(self.store.held[adapter_id] == path for adapter_id, path in self.uses), "weights in use are gone"


TestRegistry = RegistryMachine.TestCase
TestRegistry.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@settings(max_examples=100, deadline=None)
@given(
    num_slots=st.integers(1, 4),
    steps=st.lists(st.tuples(st.sets(st.integers(1, 9), max_size=4), st.sets(st.integers(1, 9))), max_size=30),
)
def test_every_adapter_of_a_step_has_a_slot_of_its_own(num_slots: int, steps: list[tuple[set[int], set[int]]]) -> None:
    """Only what moved is told, a slot holds one adapter, and dropped ones leave theirs."""
    pool = SlotPool(num_slots)
    content: dict[int, int] = {}
    for wanted, dropped in steps:
        chosen = sorted(wanted)[:num_slots]
        for adapter_id, slot in pool.take(chosen):
            content[slot] = adapter_id
        assert {content[pool.slot_of(adapter_id)] for adapter_id in chosen} == set(chosen)
        assert [content[pool.slot_of(adapter_id)] for adapter_id in chosen] == chosen
        for adapter_id in dropped:
            pool.drop(adapter_id)
        pool.check_integrity()


def test_the_least_recently_used_slot_is_taken() -> None:
    """An adapter that the last step used keeps its slot."""
    pool = SlotPool(2)
    pool.take([1])
    pool.take([2])
    pool.take([1])
    slot = pool.slot_of(2)

    assert pool.take([3]) == [(3, slot)]


def test_the_least_recently_used_adapter_makes_room() -> None:
    """Of two idle adapters the one asked for last stays."""
    pool = AdapterPool(2)
    for name in ("a", "b"):
        pool.add(AdapterRecord(name, name), pool.new_id())
    pool.find("a")

    assert pool.make_room(in_use=()) == [2]
    assert pool.find("b").adapter_id == 0


def test_a_bad_folder_costs_nobody_a_place() -> None:
    """What cannot be read evicts nothing."""
    store = Store()
    registry = AdapterRegistry(store, 1, "base")
    registry.load("a", "a", ())
    with pytest.raises(AdapterInvalid):
        registry.load("b", "!b", ())

    assert list(store.held.values()) == ["a"]


def test_cache_keys_differ_by_name_and_version() -> None:
    """Neither another name nor another version shares a block."""
    keys = {cache_key(name, version) for name in ("a", "b", "a" * 128, "a" * 127 + "b") for version in (1, 2, 11)}

    assert len(keys) == 12
