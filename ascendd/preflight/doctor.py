"""
What `ascendd doctor` and `python3 -m checks` do alike: run the checks, tell the results, put right, look again.

Which host, instance and checks are meant is decided by them; from there on one `Doctor` carries their options out.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, TextIO, Type

from ascendd.errors import PermissionMissing, UsageError
from ascendd.preflight.check import Check, CheckResult
from ascendd.preflight.context import CheckContext, CheckRequest
from ascendd.preflight.fix import apply, fixes_for
from ascendd.preflight.junit import to_junit
from ascendd.preflight.language import Language, frame, titles_in
from ascendd.preflight.report import exit_code, print_report, to_json
from ascendd.preflight.runner import run_checks
from ascendd.preflight.support_archive import write_archive
from ascendd.preflight.watch import changes, merged


@dataclass(frozen=True)
class DoctorOptions:
    """What is done with the results; `junit` and `bundle` are files to write, `watch_s` the pause between two looks."""

    language: Language = Language.EN
    as_json: bool = False
    junit: Optional[Path] = None
    bundle: Optional[Path] = None
    watch_s: Optional[float] = None
    fix: bool = False
    yes: bool = False

    def check(self) -> None:
        """Raise UsageError where two options contradict each other."""
        if self.watch_s is not None and self.watch_s < 1:
            raise UsageError(f"--watch {self.watch_s:g}: write the seconds between two looks, 1 or more")
        if self.watch_s is not None and self.as_json:
            raise UsageError("--watch and --json exclude each other: run --json as often as you need it")
        if self.yes and not self.fix:
            raise UsageError("--yes says that --fix may run what it shows; write both")
        if self.fix and self.as_json:
            raise UsageError("--fix and --json exclude each other: a fix is shown to a person before it runs")


class Doctor:
    """One call of the doctor: its checks, its target, and where it tells what it finds."""

    def __init__(
        self, checks: Sequence[Type[Check]], request: CheckRequest, options: DoctorOptions, out: TextIO = sys.stdout
    ) -> None:
        self._checks, self._request, self._options, self._out = checks, request, options, out
        self._titles = {check.id: check.title for check in checks}
        self._shown_titles = titles_in(self._titles, options.language)

    def run(self) -> int:
        """Run everything that was asked for and return the exit code. Raises UsageError and PermissionMissing."""
        options = self._options
        results = run_checks(self._checks, self._request)
        if options.junit is not None:
            _write(options.junit, to_junit(results, self._titles))
        target = CheckContext(self._request).target
        report = to_json(results, target, self._titles)
        if options.as_json:
            self._say(json.dumps(report, indent=2, ensure_ascii=False))
        else:
            print_report(results, target, self._titles, self._out, options.language)
        if options.bundle is not None:
            self._bundle(options.bundle, report)
        if options.fix:
            results = self._fix(results)
        if options.watch_s is not None:
            results = self._watch(results, options.watch_s)
        return int(exit_code(results))

    def _watch(self, results: List[CheckResult], every_s: float) -> List[CheckResult]:
        """Run the live checks again and again; tell each verdict that changed. Return what was known at Ctrl-C."""
        live = [check for check in self._checks if check.live]
        named = ", ".join(check.id for check in live) or self._framed("nothing")
        try:
            # Told inside: whoever reads this line may interrupt at once.
            self._say("\n" + self._framed("looking again every {} s at: {}").format(f"{every_s:g}", named))
            while live:
                time.sleep(every_s)
                again = run_checks(live, self._request)
                lines = changes(results, again, self._shown_titles, self._options.language)
                results = merged(results, again)  # before it is told, for the same reason
                for line in lines:
                    self._say(f"{time.strftime('%H:%M:%S')}  {line}")
        except KeyboardInterrupt:
            self._say("")
        return results

    def _fix(self, results: List[CheckResult]) -> List[CheckResult]:
        """Show every fix, run each where it may be, look again at what was fixed; return what is known then."""
        fixes = fixes_for(results)
        if not fixes:
            self._say("\n" + self._framed("Nothing here can be put right by a setting; see what to do above."))
            return results
        apply_them = self._options.yes
        context = CheckContext(self._request)
        self._say("\n" + self._framed("Fixes" if apply_them else "Fixes, none of which was run; --fix --yes runs them"))
        if os.geteuid() != 0:
            self._say(self._framed("These need root: run the doctor with sudo, or give the commands to who may."))
        holds, undo = self._framed("holds"), self._framed("undo")
        for fix in fixes:
            self._say(f"{fix.check_id}: {fix.command}\n    {holds}: {self._framed(fix.holds)}")
            self._say(f"    {undo}: {fix.undo or self._framed('nothing to take back')}")
            if apply_them:
                problem = apply(fix, context.run, context.environ).problem
                self._say(
                    "    " + (self._framed("done") if problem is None else f"{self._framed('failed')}: {problem}")
                )
        if not apply_them:
            return results
        fixed = {fix.check_id for fix in fixes}
        again = run_checks([check for check in self._checks if check.id in fixed], self._request)
        for line in changes(results, again, self._shown_titles, self._options.language):
            self._say(line)
        return merged(results, again)

    def _bundle(self, archive: Path, report: Dict[str, Any]) -> None:
        names = write_archive(archive, report, CheckContext(self._request))
        said = self._framed("{}: {} files, secrets masked; look through it before it leaves")
        # Standard output may be the JSON report.
        sys.stderr.write(said.format(archive, len(names)) + "\n")

    def _framed(self, text: str) -> str:
        return frame(text, self._options.language)

    def _say(self, line: str) -> None:
        self._out.write(line + "\n")
        self._out.flush()


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PermissionMissing(
            f"--junit {path} cannot be written: {error.strerror}", remedy="Name a file in a folder that is there."
        ) from error
