"""Vendor libraries: what torch_npu links against is on the service's library path, whole, with all that it needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Tuple

from ascendd.errors import ProbeError
from ascendd.host.elf import read_needed
from ascendd.host.files import HostFiles
from ascendd.host.libraries import LibrarySearch, find_library
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude
from ascendd.preflight.context import CheckContext

NOT_SOURCED, STUB = "ASD-G24", "ASD-G25"
# What libtorch_npu.so names as needed, and the driver's own library below it.
REQUIRED_LIBRARIES = (
    "libascendcl.so", "libhccl.so", "libacl_op_compiler.so", "libge_runner.so", "libgraph.so", "libascend_hal.so",
)  # fmt: skip
# The C library's own, which every host has where its loader is.
_SYSTEM = (
    "libc.",
    "libm.",
    "libdl.",
    "libpthread.",
    "librt.",
    "libgcc_s.",
    "libstdc++.",
    "ld-linux",
    "libgomp.",
    "libz.",
)
_SOURCE = (
    "Put what set_env.sh of CANN exports into the unit's EnvironmentFile; "
    "sourcing it in a shell does not reach the service."
)


@dataclass(frozen=True)
class LibraryReport:
    """Where each library was found, what cannot be read of it, and what it needs that is nowhere (library, name)."""

    origin: str
    searches: Tuple[LibrarySearch, ...]
    broken: Mapping[str, str]
    unresolved: Tuple[Tuple[str, str], ...]


class VendorLibraries(NpuCheck):
    """The libraries of CANN and the driver can be loaded by the service."""

    id = "vendor-libraries"
    title = "Vendor libraries"
    requires = ("cann-version", "driver-version", "service-environment")

    def run(self, context: CheckContext) -> CheckResult:
        """Look each library up as the loader would, and follow what it needs."""
        environment = context.service()
        return judge(measure(context.files, environment.variables, environment.origin))


def measure(files: HostFiles, environ: Mapping[str, str], origin: str) -> LibraryReport:
    """Follow the needed names from the required libraries on; each name is looked up once."""
    searches = tuple(find_library(name, files, environ) for name in REQUIRED_LIBRARIES)
    waiting: List[Tuple[str, LibrarySearch]] = [(search.name, search) for search in searches]
    seen = set(REQUIRED_LIBRARIES)
    broken: Dict[str, str] = {}
    unresolved: List[Tuple[str, str]] = []
    while waiting:
        asker, search = waiting.pop(0)
        if search.found is None:
            if search.name not in REQUIRED_LIBRARIES:
                unresolved.append((asker, search.name))
            continue
        try:
            _, needed = read_needed(files.real(search.found))
        except ProbeError as error:
            broken[search.found] = error.message
            continue
        for name in needed:
            if name not in seen and not name.startswith(_SYSTEM):
                seen.add(name)
                waiting.append((search.name, find_library(name, files, environ)))
    return LibraryReport(origin, searches, broken, tuple(unresolved))


def judge(report: LibraryReport) -> CheckResult:
    """Decide: what is missing, broken, or a stub made for compiling, fails."""
    evidence = {
        "origin": report.origin,
        "libraries": {search.name: search.found for search in report.searches},
        "unresolved": [f"{asker} needs {name}" for asker, name in report.unresolved],
        "broken": dict(report.broken),
    }
    findings: List[Finding] = []
    for search in report.searches:
        found = _of_search(search)
        findings += [found] if found else []
    for asker, name in report.unresolved:
        said = f"{asker} needs {name}, which is not on the library path"
        findings.append(Finding(Verdict.FAIL, said, _remedy(NOT_SOURCED, _SOURCE)))
    for path, reason in report.broken.items():
        text = f"Install the package that {path} belongs to again."
        findings.append(Finding(Verdict.FAIL, reason, _remedy(NOT_SOURCED, text)))
    return conclude(findings, f"{len(report.searches)} libraries, and what they need, in {report.origin}", evidence)


def _of_search(search: LibrarySearch) -> Optional[Finding]:
    if search.stub_first is not None:
        said = f"{search.name} would be loaded from {search.stub_first}, a stub for compiling (ACL error 100039)"
        text = "Put the driver's lib64/driver first in LD_LIBRARY_PATH and drop the devlib and stub folders."
        return Finding(Verdict.FAIL, said, _remedy(STUB, text))
    if search.found is None:
        where = f"; a copy is at {search.elsewhere}" if search.elsewhere else ""
        return Finding(Verdict.FAIL, f"{search.name} is not on the library path{where}", _remedy(NOT_SOURCED, _SOURCE))
    return None


def _remedy(code: str, text: str) -> Remedy:
    return Remedy(code, text, ("systemctl show ascendd@NAME -p Environment -p EnvironmentFiles",))
