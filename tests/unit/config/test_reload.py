"""What of a changed file is taken up while the instance runs."""

from __future__ import annotations

import msgspec

from ascendd.config.load import load_text
from ascendd.config.reload import RELOADABLE, plan_reload

BASE = "model: {path: /m}\n"


def test_only_what_may_change_does() -> None:
    """Limits and level are taken up; everything else keeps its running value and is named."""
    wanted = BASE + "admission: {max_queue: 9}\nlog: {level: debug, backups: 2}\nlisten: {port: 1}\n"
    plan = plan_reload(load_text(BASE), load_text(wanted))

    assert plan.applied == ("admission.max_queue", "log.level")
    assert plan.needs_restart == ("listen.port", "log.backups")
    assert (plan.config.admission.max_queue, plan.config.log.level) == (9, "debug")
    assert (plan.config.listen.port, plan.config.log.backups) == (8000, 5)


def test_an_equal_file_changes_nothing() -> None:
    """The very same configuration comes back."""
    running = load_text(BASE)

    assert plan_reload(running, load_text(BASE)).config is running


def test_every_reloadable_key_exists() -> None:
    """A key that was renamed in the schema would silently never be taken up."""
    raw = msgspec.to_builtins(load_text(BASE))

    assert [key for key in RELOADABLE if key.partition(".")[2] not in raw[key.partition(".")[0]]] == []


def test_adapters_are_taken_up_where_there_is_room_for_any() -> None:
    """A changed list is taken up by an instance that has adapters; one that was started without needs a restart."""
    more = "model: {path: /m, adapters: [{name: a, path: /a}, {name: b, path: /b}]}\n"
    one = "model: {path: /m, adapters: [{name: a, path: /a}]}\n"
    plan = plan_reload(load_text(one), load_text(more))
    without = plan_reload(load_text(BASE), load_text(one))

    assert (plan.applied, plan.needs_restart) == (("model.adapters",), ())
    assert [adapter.name for adapter in plan.config.model.adapters] == ["a", "b"]
    assert (without.applied, without.needs_restart) == ((), ("model.adapters",))
    assert without.config.model.adapters == []
