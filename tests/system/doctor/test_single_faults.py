"""One broken fact of a healthy fake host at a time: the one check that looks for it says so, and no other fails."""

import re
from pathlib import Path

import pytest
from examination import examine
from fake_machine import FakeMachine
from fault_cases import CASES as HARDWARE_CASES
from host_fault_cases import HOST_CASES, instance

from ascendd.preflight.check import CheckResult, Verdict
from ascendd.preflight.finding_texts import finding_in
from ascendd.preflight.language import Language

pytestmark = pytest.mark.system

CASES = {**HARDWARE_CASES, **HOST_CASES}
SOUND = (Verdict.PASS, Verdict.SKIPPED)


def not_chinese(results: dict[str, CheckResult]) -> dict[str, str]:
    """Return the findings that are told in English where Chinese is asked for."""
    told = {name: finding_in(result.summary, name, Language.ZH) for name, result in results.items()}
    return {name: text for name, text in told.items() if text and not re.search("[\u3000-\u9fff\uff00-\uffef]", text)}


@pytest.fixture
def server(tmp_path: Path, acl_library: Path) -> FakeMachine:
    """A healthy machine; without a compiler, since the C sample has tests of its own."""
    machine = FakeMachine(tmp_path / "host", acl_library)
    machine.remove("usr/bin/gcc")
    return machine


def test_a_healthy_machine_has_nothing_to_be_said(server: FakeMachine) -> None:
    """No check fails, warns or breaks, and only what has nothing to look at is skipped."""
    results = examine(server)

    assert {name: result for name, result in results.items() if result.verdict not in SOUND} == {}
    skipped = {name: result.summary for name, result in results.items() if result.verdict is Verdict.SKIPPED}
    assert skipped.keys() <= {"acl-sample", "vendor-sample", *OF_AN_INSTANCE, *OF_A_CLUSTER}, skipped


# Checks that say nothing without an instance or a model.
OF_A_CLUSTER = ("cluster-network", "cluster-names", "cluster-ports", "cluster-chips", "cluster-agreement")
OF_AN_INSTANCE = ("model-artefact", "plan-fits", "port-free", "shell-environment")


def test_a_healthy_instance_has_nothing_to_be_said(server: FakeMachine) -> None:
    """With an instance, its unit and its model every check of an instance is made, and passes."""
    results = examine(server, **instance(server), as_service=True)

    assert {name: result for name, result in results.items() if result.verdict not in SOUND} == {}
    assert all(results[name].verdict is Verdict.PASS for name in OF_AN_INSTANCE), results
    assert not_chinese(results) == {}


@pytest.mark.parametrize("name", CASES)
def test_one_broken_fact_is_found_by_one_check(server: FakeMachine, name: str) -> None:
    """Check, verdict, code of the runbook, words of the finding and of the remedy; everything else passes or is skipped."""
    case = CASES[name]
    case.damage(server)

    results = examine(server, **case.request(server))

    found = {check: result for check, result in results.items() if result.verdict not in SOUND}
    assert list(found) == [case.check], {check: result.summary for check, result in found.items()}
    assert not_chinese(results) == {}
    result = found[case.check]
    assert result.verdict.value == case.verdict, result.summary
    assert case.says in result.summary, result.summary
    assert result.remedy is not None
    assert (result.remedy.runbook, case.remedy in result.remedy.text) == (case.code, True), result.remedy


def test_there_are_at_least_sixty_cases_for_every_kind_of_check() -> None:
    """Each check of the hardware and its software has a case of its own, with every verdict that it can give."""
    assert len(CASES) >= 60
    assert len(CASES) == len(HARDWARE_CASES) + len(HOST_CASES)
    assert {case.verdict for case in CASES.values()} == {"fail", "warn", "error"}
