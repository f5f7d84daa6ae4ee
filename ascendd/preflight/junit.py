"""JUnit XML of a doctor's run, as CI systems read it: one test case a check."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Mapping, Sequence

from ascendd.preflight.check import CheckResult, Verdict


def to_junit(results: Sequence[CheckResult], titles: Mapping[str, str]) -> str:
    """
    Return the report: FAIL is a failure, ERROR an error, SKIPPED skipped; a WARN passes, with its words in system-out.

    The form is that of the Jenkins JUnit plugin's schema, which others read as well.
    """
    count = {verdict: sum(result.verdict is verdict for result in results) for verdict in Verdict}
    suite = ET.Element(
        "testsuite",
        name="ascendd doctor",
        tests=str(len(results)),
        failures=str(count[Verdict.FAIL]),
        errors=str(count[Verdict.ERROR]),
        skipped=str(count[Verdict.SKIPPED]),
        time=f"{sum(result.duration_s for result in results):.3f}",
    )
    for result in results:
        case = ET.SubElement(
            suite,
            "testcase",
            classname="ascendd.doctor",
            name=f"{result.check_id}: {titles[result.check_id]}",
            time=f"{result.duration_s:.3f}",
        )
        remedy = "" if result.remedy is None else f"\n{result.remedy.text}\nrunbook: {result.remedy.runbook}"
        told = _printable(result.summary)
        if result.verdict in (Verdict.FAIL, Verdict.ERROR):
            tag = "failure" if result.verdict is Verdict.FAIL else "error"
            element = ET.SubElement(case, tag, message=told, type=result.verdict.value)
            element.text = told + _printable(remedy)
        elif result.verdict is Verdict.SKIPPED:
            ET.SubElement(case, "skipped", message=told)
        else:
            ET.SubElement(case, "system-out").text = told + _printable(remedy)
    ET.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"


def _printable(text: str) -> str:
    """Replace what XML 1.0 cannot hold; a vendor's tool prints control characters now and then."""
    return "".join(char if char in "\n\t" or char.isprintable() else "?" for char in text)
