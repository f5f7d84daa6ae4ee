"""Every recorded fault that a log shows is named, alone and inside long healthy logs; healthy logs name nothing."""

from __future__ import annotations

import random

import pytest
from fault_score import log_cases, named, print_score

NUM_HEALTHY_LINES = 5000
WRAPPERS = [
    "[ERROR] 2026-03-03-10:00:00 (PID:4242, Device:{rank}, RankID:{rank}) ERR00100 PTA call acl api failed",
    "EE9999: Inner Error!\nEE9999: [PID: 4242] 2026-03-03-10:00:00.000.001 (EE9999):  TraceBack (most recent call last):",
    "EZ9999: Inner Error!  EZ9999: [PID: 4242] 2026-03-03-10:00:00.000.001 op failed",
    "RuntimeError: call failed, error code is 500001",
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    "RuntimeError: Failed to infer device type",
]


def test_every_fault_is_named_alone(faults, diagnose):
    """The text of each case alone yields its id and the daemon's action."""
    reports = [(case, diagnose(case[1])) for case in log_cases(faults)]

    score = print_score("each case alone", [(case[0], case[2], named(report)) for case, report in reports])

    assert score["right"] == len(reports) >= 55
    wrong_action = [case[0] for case, report in reports if report.cause.action.value != case[3]]
    assert wrong_action == []


@pytest.mark.parametrize("turn", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_every_fault_is_named_inside_a_healthy_log(faults, diagnose, healthy, turn):
    """Each case is found among 5,000 healthy lines of eight ranks, its lines together or apart, a wrapper after it."""
    rows = []
    for number, (case_id, text, code, _) in enumerate(log_cases(faults)):
        seed = 2 * number + turn
        log = healthy(seed)
        chance = random.Random(seed)
        gap = 6 * ((number + turn) % 2)
        lines = log.lines(NUM_HEALTHY_LINES)
        place = chance.randrange(1000, 4000)
        told = [part for line in text.splitlines() for part in (line, *log.lines(gap))]
        after = chance.choice(WRAPPERS).replace("{rank}", str(chance.randrange(8)))
        whole = [*lines[:place], *told, *lines[place : place + 20], after, *lines[place + 20 :]]
        rows.append((case_id, code, named(diagnose("\n".join(whole)))))

    score = print_score(f"each case in {NUM_HEALTHY_LINES} healthy lines", rows)

    assert score["right"] == len(rows)


def test_fault_of_one_rank_is_found_behind_the_cries_of_the_others(faults, diagnose, healthy):
    """The log of one rank has the cause; the others, read first, tell later of sockets that timed out."""
    rows = []
    for seed, (case_id, text, code, _) in enumerate(log_cases(faults)):
        if code.startswith(("hccl.", "perf.", "hw.health", "proc.", "sup.", "hang.", "dist.")):
            continue
        log = healthy(seed)
        stamped = [f"[ERROR] RUNTIME({log.pids[3]},python3):{log.plog_time()} [a.cc:1]", *text.splitlines()]
        failed = "\n".join([*log.lines(200), *stamped, *log.lines(10)])
        cry = f"[ERROR] HCCL({log.pids[0]},python3):{log.plog_time()} Communication_Error_Get_Socket(EI0006): wait socket establish timeout, role[1] rank[3] timeout[120]"
        victims = ["\n".join([*log.lines(200), cry, WRAPPERS[1]]) for _ in range(2)]
        rows.append((case_id, code, named(diagnose(*victims, failed))))

    score = print_score("each case on one rank of three", rows)

    assert score["right"] == len(rows) >= 40


@pytest.mark.parametrize("seed", range(20))
def test_healthy_log_names_nothing(diagnose, healthy, seed):
    """A healthy log of real shapes, warnings among them, has no cause."""
    report = diagnose("\n".join(healthy(1000 + seed).lines(2000)))

    assert named(report) is None, report.cause.evidence
    assert report.wrapper is None


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrapper_alone_is_no_cause(diagnose, healthy, wrapper):
    """A line that only says that something failed is shown as unexplained, never as a cause."""
    report = diagnose("\n".join([*healthy(5).lines(50), wrapper.replace("{rank}", "2")]))

    assert report.cause is None
    assert report.wrapper is not None


def test_cases_without_a_log_say_why(faults):
    """A case that is not scored gives its reason, and every case has a source."""
    assert all(fault["source"] for fault in faults)
    assert [fault["id"] for fault in faults if fault.get("not_a_log") == ""] == []
    assert sum("not_a_log" not in fault for fault in faults) >= 50
