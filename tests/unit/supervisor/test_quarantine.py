"""Which chips are left out, and where an instance goes on without them."""

from __future__ import annotations

import json

import pytest

from ascendd.config.load import convert
from ascendd.errors import DeviceEccError, DeviceLost
from ascendd.ipc.messages import Fault, Role
from ascendd.supervisor.child_exit import ChildExit
from ascendd.supervisor.quarantine import Chips, LeftOut, Placement, Quarantine
from ascendd.supervisor.recovery import Action, RecoveryPolicy
from ascendd.supervisor.restart import RestartPolicy

FOUR = Placement(4, 1, (0, 1, 2, 3))


def gone(*devices):
    """Return chips that were left out for a fault that repeats."""
    return tuple(LeftOut(device, "failed repeatedly") for device in devices)


def test_a_chip_whose_fault_repeats_is_left_out():
    """The second fault within the window does it; one an hour later or of another chip does not."""
    subject = Quarantine(600.0)

    seen = [subject.add(*fault) for fault in ((2, 0.0), (3, 1.0), (2, 700.0), (2, 800.0), (2, 5000.0))]

    assert seen == [False, False, False, True, True]
    assert subject.devices == {2: "failed repeatedly"}


@pytest.mark.parametrize(
    ("now", "bad", "sizes", "expected"),
    [
        (FOUR, {1}, [1, 2, 4], Placement(2, 1, (0, 2), gone(1))),
        (FOUR, {1}, [1, 2, 3, 4], Placement(3, 1, (0, 2, 3), gone(1))),
        (FOUR, {0, 1, 2}, [1, 2, 4], Placement(1, 1, (3,), gone(0, 1, 2))),
        (Placement(2, 2, (4, 5, 6, 7)), {5}, [1, 2], Placement(1, 2, (4, 6), gone(5))),
        (Placement(1, 2, (0, 1)), {0}, [1], None),
        (Placement(1, 1, (0,)), {0}, [1], None),
        (FOUR, {1}, [4], None),
    ],
)
def test_the_largest_size_that_the_others_suffice_for(now, bad, sizes, expected):
    """A smaller tensor parallel size on healthy chips, the same number of pipeline stages, or none."""
    subject = Quarantine(600.0)
    for device in bad:
        subject.add(device, 0.0)
        subject.add(device, 1.0)

    assert subject.placement(now, sizes) == expected


def policy(allowed, tmp_path):
    """Return the policy of an instance of four ranks on chips 4 to 7, with a model of four heads."""
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["Qwen2ForCausalLM"],
                "model_type": "qwen2",
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 1,
                "num_attention_heads": 4,
                "num_key_value_heads": 4,
                "vocab_size": 8,
                "max_position_embeddings": 64,
            }
        )
    )
    config = convert(
        {
            "model": {"path": str(tmp_path)},
            "parallel": {"tensor_parallel_size": 4, "devices": [7, 5, 4, 6]},
            "recovery": {"allow_smaller_parallel": allowed},
        }
    )
    one = RestartPolicy(backoff_min_s=1.0, backoff_max_s=60.0, window_s=600.0, max_restarts=5)
    return RecoveryPolicy({Role.ENGINE: one}, 600.0, lambda: 0.0, Chips.of(config) if allowed else None)


def lost(rank, kind=DeviceLost):
    """Return the end of an engine of which that rank's device failed."""
    return ChildExit(Role.ENGINE, 70, Fault.from_error(kind("the device stopped answering", rank=rank)))


def test_the_policy_places_the_instance_anew_at_the_second_fault(tmp_path):
    """Rank 1 has the second of the chips in ascending order; the next engine runs on two of the others."""
    subject = policy(allowed=True, tmp_path=tmp_path)

    first, second = subject.on_end(lost(1), 1, 0.0), subject.on_end(lost(1, DeviceEccError), 2, 60.0)

    assert (first.action, first.placement) == (Action.RESTART, None)
    assert second.action is Action.RESTART
    assert second.placement == Placement(2, 1, (4, 6), gone(5))
    assert second.placement.text == "tensor parallel size 2 on devices 4, 6, since device 5 failed repeatedly"


def test_without_leave_a_repeated_fault_ends_the_instance(tmp_path):
    """Nobody gets a smaller instance than was asked for unless the file says so."""
    subject = policy(allowed=False, tmp_path=tmp_path)

    reactions = [subject.on_end(lost(1), run, 60.0 * run) for run in (1, 2, 3)]

    assert [reaction.placement for reaction in reactions] == [None] * 3
    assert reactions[2].action is Action.FAIL_INSTANCE


def test_a_fault_without_a_rank_leaves_no_chip_out(tmp_path):
    """Which chip it was is not guessed."""
    subject = policy(allowed=True, tmp_path=tmp_path)
    ends = [ChildExit(Role.ENGINE, 70, Fault.from_error(DeviceLost("who knows")))] * 3

    assert [subject.on_end(end, run, 1.0 * run).placement for run, end in enumerate(ends, 1)] == [None] * 3


def test_a_chip_that_stays_at_fault_is_left_out_at_once(tmp_path):
    """Its first fault is enough where it does not recover between two engines; the words say what each chip does."""
    subject = policy(allowed=True, tmp_path=tmp_path)
    subject.on_end(lost(1), 1, 0.0)

    placement = subject.leave_out({5: "reports health Alarm"})
    again = subject.leave_out({4: "was reset in vain"})

    assert placement == Placement(2, 1, (4, 6), (LeftOut(5, "reports health Alarm"),))
    assert again is not None
    assert again.text == (
        "tensor parallel size 1 on devices 6, since device 4 was reset in vain, device 5 reports health Alarm"
    )
    assert subject.leave_out({6: "reports health Alarm"}) is None


def test_no_chip_but_one_in_use_makes_an_instance_smaller(tmp_path):
    """A chip that the instance does not have, or has left out already, changes nothing; nor does any without leave."""
    subject = policy(allowed=True, tmp_path=tmp_path)
    subject.leave_out({5: "reports health Alarm"})

    assert subject.leave_out({5: "reports health Alarm", 9: "reports health Alarm"}) is None
    assert policy(allowed=False, tmp_path=tmp_path).leave_out({5: "reports health Alarm"}) is None
