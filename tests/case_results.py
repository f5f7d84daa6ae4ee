"""
Run the tests of the case table (tests/unit/api/test_case_table.py) and print a line for each case: its id and result.

    python tests/case_results.py [IDS ...]        exit status 1 where any case fails
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

TESTS = Path(__file__).resolve().parent


def read_cases() -> dict[str, list[str]]:
    """Return id -> tests."""
    spec = importlib.util.spec_from_file_location("case_table", TESTS / "unit" / "api" / "test_case_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cases: dict[str, list[str]] = module.CASES
    return cases


def run(places: list[str]) -> dict[str, list[str]]:
    """Run the tests at `places` and return, for `file::test`, the outcomes of all its parameters."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        subprocess.run([*command, *(str(TESTS / place) for place in places)], cwd=TESTS.parent, check=False)
        outcomes: dict[str, list[str]] = {}
        for case in ET.parse(report).iter("testcase"):
            path = case.get("classname", "").removeprefix("tests.").replace(".", "/")
            name = case.get("name", "").partition("[")[0]
            kinds = {child.tag for child in case}
            outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
            outcomes.setdefault(f"{path}.py::{name}", []).append(outcome)
    return outcomes


def main(chosen: list[str]) -> int:
    """Print the table and return the exit status."""
    cases = {case: places for case, places in read_cases().items() if not chosen or case in chosen}
    if unknown := sorted(set(chosen) - cases.keys()):
        print(f"no case {', '.join(unknown)}", file=sys.stderr)
        return 64
    outcomes = run(sorted({place for places in cases.values() for place in places}))
    num_failed = 0
    for case, places in cases.items():
        found = [outcome for place in places for outcome in outcomes.get(place, ["not run"])]
        result = next((kind for kind in ("failed", "not run", "skipped") if kind in found), "passed")
        num_failed += result in ("failed", "not run")
        print(f"{case:5} {result:8} {len(found):4} tests   {', '.join(places)}")
    print(f"{len(cases)} cases, {num_failed} not held")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
