"""JUnit XML, explanations and the page of the doctor."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from ascendd.checks import CHECKS

from ascendd.preflight.check import CheckResult, Remedy, Tier, Verdict
from ascendd.preflight.explain import explain
from ascendd.preflight.junit import to_junit
from ascendd.preflight.language import Language

RESULTS = [
    CheckResult(Verdict.PASS, "all well", duration_s=0.5, check_id="a"),
    CheckResult(Verdict.WARN, "a bit hot", remedy=Remedy("ASD-N02", "Cool it."), check_id="b"),
    CheckResult(Verdict.FAIL, "gone \x1b[1m<chip> & more", remedy=Remedy("ASD-N01", "Reseat it."), check_id="c"),
    CheckResult(Verdict.ERROR, "no answer", check_id="d"),
    CheckResult(Verdict.SKIPPED, "no NPU", check_id="e"),
]


def test_each_verdict_is_what_ci_makes_of_it() -> None:
    """FAIL is a failure, ERROR an error, SKIPPED skipped, a WARN passes; control characters never break the XML."""
    suite = ET.fromstring(to_junit(RESULTS, {result.check_id: result.check_id.upper() for result in RESULTS}))
    cases = {case.get("name"): [child.tag for child in case] for case in suite}

    assert cases == {
        "a: A": ["system-out"], "b: B": ["system-out"], "c: C": ["failure"], "d: D": ["error"], "e: E": ["skipped"],
    }  # fmt: skip
    assert [suite.get(key) for key in ("tests", "failures", "errors", "skipped", "time")] == [
        "5",
        "1",
        "1",
        "1",
        "0.500",
    ]
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert failure.get("message") == "gone ?[1m<chip> & more"
    assert (failure.text or "").endswith("Reseat it.\nrunbook: ASD-N01")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_every_check_explains_itself(check) -> None:
    """Title, what it looks at, what it needs first, when it runs and its limit are told for each."""
    told = explain(check.id, CHECKS)

    assert told.startswith(f"{check.title} ({check.id})\n")
    assert len(told.splitlines()[2]) > 20
    assert f"time limit    {check.timeout_s:g} s" in told
    assert "needs first" in told


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_every_check_explains_itself_in_chinese(check) -> None:
    """No line but names, ids and numbers is English; there is a sentence of its own for each check."""
    told = explain(check.id, CHECKS, Language.ZH).splitlines()

    assert told[0].endswith(f"({check.id})")
    assert all(re.search("[\u4e00-\u9fff\uff00-\uffef]", line) for line in (told[0], *told[2:3], *told[4:]))
    assert len({explain(other.id, CHECKS, Language.ZH).splitlines()[2] for other in CHECKS}) == len(CHECKS)


def test_the_page_of_the_doctor_lists_every_check() -> None:
    """docs/DOCTOR.md has a row for each check, with its title and when it runs."""
    page = (Path(__file__).resolve().parents[3] / "docs/DOCTOR.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `") and line.count("|") == 5]
    when = {check.id: "--deep" if check.tier is Tier.DEEP else "live" if check.live else "" for check in CHECKS}

    assert [(row.split("`")[1], row.split(" | ")[1], row.split("|")[4].strip()) for row in rows] == [
        (check.id, check.title, when[check.id]) for check in CHECKS
    ]


def test_what_changes_under_a_running_instance_is_looked_at_again() -> None:
    """Health, errors, links, holders, the kernel log and what fills up are live; versions and settings are not."""
    live = {check.id for check in CHECKS if check.live}
    of_chips = {"npu-health", "npu-ecc", "npu-sensors", "hccl-link", "device-holders", "kernel-log"}

    assert live == of_chips | {"shared-memory", "log-disk", "leftover-processes"}
