"""CANN's layout: one toolkit, named alike everywhere, with the operators (kernels, ops) for the chips of this host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ascendd.host.cann_version import parse_version
from ascendd.host.files import HostFiles
from ascendd.host.pci import find_pci_npus
from ascendd.host.vendor_facts import load_facts
from ascendd.host.version_files import CannFiles, read_cann, read_component_release
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude
from ascendd.preflight.context import CheckContext

CANN_MIXED, KERNELS_MISSING, KERNEL_MISMATCH = "ASD-G23", "ASD-G29", "ASD-G80"
# Variables that lead into a toolkit; all of them must lead into the same one.
_ROOTS = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_OPP_PATH", "ASCEND_AICPU_PATH")
_PATH_LISTS = ("LD_LIBRARY_PATH", "PYTHONPATH")


@dataclass(frozen=True)
class Layout:
    """Toolkits found (the one in use first), its component's release, and where each variable leads (version)."""

    toolkits: Tuple[CannFiles, ...]
    component_release: Optional[str]
    leads_to: Mapping[str, str]
    families: Tuple[str, ...]


class CannLayout(NpuCheck):
    """The toolkit in use is whole and not mixed with another."""

    id = "cann-layout"
    title = "CANN layout"
    requires = ("cann-version",)

    def run(self, context: CheckContext) -> CheckResult:
        """Read the toolkits on disk and follow each variable of the service's environment."""
        environ = context.service().variables
        toolkits = read_cann(context.files, environ)
        return judge(
            Layout(
                toolkits=toolkits,
                component_release=read_component_release(context.files, toolkits[0].root) if toolkits else None,
                leads_to=leads_to(context.files, environ, toolkits),
                families=tuple(sorted({npu.family for npu in find_pci_npus(context.files)})),
            )
        )


def leads_to(files: HostFiles, environ: Mapping[str, str], toolkits: Sequence[CannFiles]) -> Dict[str, str]:
    """Return variable -> the version of the toolkit that it leads into; those that lead into none are left out."""
    roots = {files.resolve(toolkit.root): toolkit.version for toolkit in toolkits}
    found: Dict[str, str] = {}
    for name in (*_ROOTS, *_PATH_LISTS):
        for path in filter(None, environ.get(name, "").split(":")):
            resolved = files.resolve(path)
            root = next((root for root in roots if resolved == root or resolved.startswith(root + "/")), None)
            if root is not None:
                found.setdefault(name, roots[root])  # of a list the first counts, as it does for the loader
    return found


def judge(layout: Layout) -> CheckResult:
    """Decide; a mixture of releases and operators for other chips fail."""
    if not layout.toolkits:
        return CheckResult(Verdict.SKIPPED, "no CANN toolkit is installed")
    cann = layout.toolkits[0]
    evidence = {
        "in_use": cann.root,
        "version": cann.version,
        "ops_for": list(cann.ops_chips),
        "component_release": layout.component_release,
        "leads_to": dict(layout.leads_to),
        "toolkits": {toolkit.root: toolkit.version for toolkit in layout.toolkits},
    }
    findings: List[Finding] = []
    releases = sorted(set(layout.leads_to.values()))
    if len(releases) > 1:
        shown = ", ".join(f"{name} to {version}" for name, version in layout.leads_to.items())
        text = "Source one set_env.sh only: every path of the environment must lead into one toolkit."
        findings.append(_finding(Verdict.FAIL, f"the environment mixes CANN {' and '.join(releases)}: {shown}", text))
    component = layout.component_release
    if component is not None and not _same(component, cann.version):
        text = "Install the toolkit again; another package has overwritten a part of it."
        said = f"the toolkit is {cann.version}, but its runtime belongs to {component}"
        findings.append(_finding(Verdict.FAIL, said, text))
    return conclude([*findings, *_of_operators(cann, layout.families)], _all_well(cann, layout), evidence)


def _all_well(cann: CannFiles, layout: Layout) -> str:
    more = len(layout.toolkits) - 1
    return f"{cann.version} with operators for {', '.join(cann.ops_chips)}" + (
        f"; {more} more installed" if more else ""
    )


def _of_operators(cann: CannFiles, families: Sequence[str]) -> List[Finding]:
    """Compare the operators installed with the chips on the bus."""
    if not families:
        return []
    wanted = sorted({name for row in load_facts("pci_devices")["devices"].values() if row["family"] in families
                     for name in row["packages"]})  # fmt: skip
    if not cann.ops_chips:
        text = f"Install the ops (up to 8.3: kernels) package of CANN {cann.version} for {' or '.join(wanted)}."
        return [_finding(Verdict.FAIL, "no operators are installed (kernels or ops package)", text, KERNELS_MISSING)]
    installed = {chip[len("ascend") :] if chip.startswith("ascend") else chip for chip in cann.ops_chips}
    if not installed & set(wanted):
        said = f"operators are installed for {', '.join(sorted(installed))}, the chips are {', '.join(families)}"
        text = f"Install the ops (up to 8.3: kernels) package of CANN {cann.version} for {' or '.join(wanted)}."
        return [_finding(Verdict.FAIL, said, text, KERNEL_MISMATCH)]
    return []


def _same(one: str, other: str) -> bool:
    return one == other or parse_version(one) == parse_version(other) is not None


def _finding(verdict: Verdict, said: str, text: str, code: str = CANN_MIXED) -> Finding:
    commands = ("ls -l /usr/local/Ascend /usr/local/Ascend/ascend-toolkit",)
    return Finding(verdict, said, Remedy(code, text, commands))
