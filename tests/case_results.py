"""
Run the tests of the case table (tests/unit/api/test_case_table.py) and print a line for each case: its id and result.

    python tests/case_results.py [-n WORKERS] [IDS ...]        exit status 1 where any case fails
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import time
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


def run(places: list[str], num_workers: int) -> dict[str, list[str]]:
    """Run the tests at `places` and return, for `file::test`, the outcomes of all its parameters."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        if num_workers > 1:
            command += ["-n", str(num_workers), "--dist", "loadfile"]
        subprocess.run([*command, *(str(TESTS / place) for place in places)], cwd=TESTS.parent, check=False)
        outcomes: dict[str, list[str]] = {}
        for case in ET.parse(report).iter("testcase"):
            path = case.get("classname", "").removeprefix("tests.").replace(".", "/")
            name = case.get("name", "").partition("[")[0]
            kinds = {child.tag for child in case}
            outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
            outcomes.setdefault(f"{path}.py::{name}", []).append(outcome)
    return outcomes


def main() -> int:
    """Print the table and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", dest="num_workers", type=int, default=1, help="processes that run tests")
    parser.add_argument("cases", nargs="*", metavar="ID")
    args = parser.parse_args()
    chosen = args.cases
    cases = {case: places for case, places in read_cases().items() if not chosen or case in chosen}
    if unknown := sorted(set(chosen) - cases.keys()):
        print(f"no case {', '.join(unknown)}", file=sys.stderr)
        return 64
    started = time.monotonic()
    outcomes = run(sorted({place for places in cases.values() for place in places}), args.num_workers)
    num_failed = 0
    for case, places in cases.items():
        found = [outcome for place in places for outcome in outcomes.get(place, ["not run"])]
        result = next((kind for kind in ("failed", "not run", "skipped") if kind in found), "passed")
        num_failed += result in ("failed", "not run")
        print(f"{case:5} {result:8} {len(found):4} tests   {', '.join(places)}")
    num_tests = sum(map(len, outcomes.values()))
    print(f"{len(cases)} cases, {num_failed} not held; {num_tests} tests in {time.monotonic() - started:.0f} s")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
