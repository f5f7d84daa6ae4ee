"""NNAL: the ATB library, which some fused operators of torch_npu come from, is there and of CANN's release."""

from __future__ import annotations

from typing import List, Optional

from ascendd.host.cann_version import parse_version
from ascendd.host.libraries import LibrarySearch, find_library
from ascendd.host.version_files import NnalFiles, read_cann, read_nnal
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude, conclude_with
from ascendd.preflight.context import CheckContext

NOT_SOURCED, MISMATCH = "ASD-G30", "ASD-G77"
LIBRARY = "libatb.so"


class Nnal(NpuCheck):
    """ATB can be loaded, or its absence is known; the engine then takes operators of CANN instead."""

    id = "nnal"
    title = "NNAL (ATB)"
    requires = ("cann-version", "service-environment")

    def run(self, context: CheckContext) -> CheckResult:
        """Look libatb.so up in the service's environment and read the version beside it."""
        environ = context.service().variables
        toolkits = read_cann(context.files, environ)
        search = find_library(LIBRARY, context.files, environ)
        return judge(read_nnal(context.files, environ), search, toolkits[0].version if toolkits else None)


def judge(nnal: NnalFiles, search: LibrarySearch, cann: Optional[str]) -> CheckResult:
    """Decide; nothing here fails, since serving works without ATB."""
    evidence = {"version": nnal.version, "root": nnal.root, "library": search.found, "cann": cann}
    findings: List[Finding] = []
    if nnal.version is None and search.found is None:
        text = "Install the nnal package of CANN's release, and source its set_env.sh, if ATB operators are wanted."
        return conclude_with(_finding(f"nnal is not installed: {nnal.root} has no version", text), evidence)
    if nnal.version is None:
        text = "Install the nnal package of CANN's release again, so that its version.info tells which it is."
        findings.append(_finding(f"{search.found} is there, but {nnal.root} does not tell its version", text, MISMATCH))
    if search.found is None:
        text = "Put what nnal/atb/set_env.sh exports into the unit's EnvironmentFile."
        findings.append(_finding(f"nnal {nnal.version} is installed, but {LIBRARY} is not on the library path", text))
    ours, theirs = parse_version(nnal.version or ""), parse_version(cann or "")
    if (
        ours is not None
        and theirs is not None
        and ours.is_ranked
        and (ours.major, ours.minor) != (theirs.major, theirs.minor)
    ):
        text = f"Install the nnal package of CANN {cann}."
        findings.append(_finding(f"nnal {nnal.version} is not of the release of CANN {cann}", text, MISMATCH))
    return conclude(findings, f"{nnal.version or 'unknown version'} at {nnal.root}", evidence)


def _finding(said: str, text: str, code: str = NOT_SOURCED) -> Finding:
    return Finding(Verdict.WARN, said, Remedy(code, text, ("ls /usr/local/Ascend/nnal/atb",)))
