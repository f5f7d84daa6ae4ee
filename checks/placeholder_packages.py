"""Placeholder packages: what pip installed under the vendor's names is the vendor's software, not an empty stand-in."""

from __future__ import annotations

from typing import Dict, List, Optional

from ascendd.host.files import HostFiles
from ascendd.host.python_stack import InstalledPackage, PythonStack, read_python_stack
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude
from ascendd.preflight.context import CheckContext

TORCH_MISMATCH, NOT_CANN = "ASD-G78", "ASD-G24"
# CANN comes in the vendor's .run, .deb and .rpm packages. What a package index has under these names is empty, or
# (ascend-cann-nnrt 8.0.0) an empty installer that it runs.
CANN_NAMES = ("cann", "ascend-cann-toolkit", "ascend-cann-nnrt", "ascend-cann-kernels", "ascend-toolkit")
TORCH_NPU_LIBRARIES = ("torch_npu/lib/libtorch_npu.so", "torch_npu/libtorch_npu.so")


class PlaceholderPackages(NpuCheck):
    """No package only carries a vendor's name."""

    id = "placeholder-packages"
    title = "Placeholder packages"

    def run(self, context: CheckContext) -> CheckResult:
        """Read what is installed, and look for torch_npu's library."""
        request = context.request
        in_unit = request.instance is not None and not request.inside_service
        stack = read_python_stack(context.files, context.service().variables, prefer_release=in_unit)
        torch_npu = None if stack is None else stack.package("torch-npu")
        return judge(stack, torch_npu is None or has_library(context.files, torch_npu))


def has_library(files: HostFiles, torch_npu: InstalledPackage) -> bool:
    """Tell whether the package holds the library that torch_npu is all about."""
    return any(files.exists(f"{torch_npu.folder}/{path}") for path in TORCH_NPU_LIBRARIES)


def judge(stack: Optional[PythonStack], torch_npu_is_whole: bool) -> CheckResult:
    """Decide; an empty torch_npu cannot serve, an empty CANN only misleads whoever reads `pip list`."""
    if stack is None:
        return CheckResult(Verdict.SKIPPED, "ascendd is not installed on this host yet")
    placeholders: Dict[str, str] = {
        package.name: package.version for package in stack.found if package.name in CANN_NAMES
    }
    findings: List[Finding] = []
    if not torch_npu_is_whole:
        text = "Uninstall it, and install the wheel of the vendor's release page that python-stack names."
        said = "torch_npu is a placeholder: its package holds no libtorch_npu.so"
        commands = ("/opt/ascendd/current/bin/python -m pip show -f torch-npu",)
        findings.append(Finding(Verdict.FAIL, said, Remedy(TORCH_MISMATCH, text, commands)))
    if placeholders:
        shown = ", ".join(f"{name} {version}" for name, version in placeholders.items())
        text = "Uninstall it: CANN is installed from the vendor's packages, never by pip."
        commands = (f"/opt/ascendd/current/bin/python -m pip uninstall {' '.join(placeholders)}",)
        said = f"{shown} is no CANN, only a package of that name"
        findings.append(Finding(Verdict.WARN, said, Remedy(NOT_CANN, text, commands)))
    return conclude(findings, "no package stands in for the vendor's software", {"placeholders": placeholders})
