"""Python stack: the interpreter, torch, torch_npu and CANN belong together; read from metadata, nothing is imported."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from ascendd.host.cann_version import matches_pattern
from ascendd.host.policy import VersionPolicy, read_policy
from ascendd.host.python_stack import PythonStack as Stack
from ascendd.host.python_stack import read_python_stack
from ascendd.host.vendor_facts import load_facts
from ascendd.host.version_files import read_cann
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude
from ascendd.preflight.context import CheckContext

PREFLIGHT, TORCH_MISMATCH = "ASD-P01", "ASD-G78"
_LIST = ("/opt/ascendd/current/bin/python -m pip list",)


class PythonStack(NpuCheck):
    """Python, torch, torch_npu and CANN go together."""

    id = "python-stack"
    title = "Python stack"
    requires = ("cann-version", "site-policy")

    def run(self, context: CheckContext) -> CheckResult:
        """Read what is installed beside ascendd, and CANN's version."""
        request, service = context.request, context.service()
        in_unit = request.instance is not None and not request.inside_service
        stack = read_python_stack(context.files, service.variables, prefer_release=in_unit)
        toolkits = read_cann(context.files, service.variables)
        return judge(stack, toolkits[0].version if toolkits else None, read_policy(context.files))


def judge(stack: Optional[Stack], cann: Optional[str], policy: VersionPolicy) -> CheckResult:
    """Decide; a pair that nobody lists only warns, unless the vendor lists another torch for this CANN."""
    if stack is None:
        return CheckResult(Verdict.SKIPPED, "ascendd is not installed on this host yet")
    torch, torch_npu = stack.package("torch"), stack.package("torch-npu")
    evidence: Dict[str, Any] = {
        "python": stack.python,
        "torch": None if torch is None else torch.version,
        "torch_npu": None if torch_npu is None else torch_npu.version,
        "cann": cann,
        "folders": list(stack.folders),
    }
    findings = _duplicates(stack)
    wanted = advice(cann, None if torch is None else torch.release)
    if torch is None or torch_npu is None:
        missing = " and ".join(name for name, found in (("torch", torch), ("torch_npu", torch_npu)) if found is None)
        text = f"Install {wanted} into the environment of ascendd."
        findings.append(_fail(f"{missing} not installed in {stack.folders[-1]}", text, TORCH_MISMATCH))
        return conclude(findings, "", evidence)
    versions = {"torch": torch.release, "torch_npu": torch_npu.release, "python": stack.python, "cann": cann or ""}
    permitted = _permit(policy, versions)
    if permitted is not None:
        findings.append(Finding(Verdict.PASS, f"permitted by {policy.site_file}: {permitted}"))
    else:
        findings += _torch_with_torch_npu(torch.release, torch_npu.release)
        findings += _python(torch.release, stack.python)
        if not findings and cann is not None:
            findings += _cann(torch.release, torch_npu.release, cann, wanted)
    told = f"Python {stack.python}, torch {torch.version}, torch_npu {torch_npu.version}, CANN {cann or 'unknown'}"
    return conclude(findings, told, evidence)


def advice(cann: Optional[str], torch: Optional[str]) -> str:
    """Return the pair that the vendor lists for `cann`, with the installed `torch` where it is among them."""
    rows = _rows_of(cann) if cann else []
    row = next((row for row in rows if row["torch"] == torch), rows[0] if rows else None)
    if row is None:
        return "the torch and torch_npu that the vendor lists for this CANN"
    return f"torch {row['torch']} with torch_npu {row['torch_npu']}"


def _rows_of(cann: str) -> List[Dict[str, Any]]:
    pairs: List[Dict[str, Any]] = load_facts("torch_cann")["pairs"]
    return [row for row in pairs if row["cann"] is not None and matches_pattern(cann, row["cann"])]


def _permit(policy: VersionPolicy, versions: Dict[str, str]) -> Optional[str]:
    """Return the site's reason where one of its permits names CANN or torch_npu with others of these layers."""
    for layers in (("cann", "torch"), ("cann", "torch_npu"), ("cann", "torch", "torch_npu"), ("torch", "torch_npu"),
                   ("cann", "torch", "torch_npu", "python")):  # fmt: skip
        reason = policy.permit(**{layer: versions[layer] for layer in layers})
        if reason is not None:
            return reason
    return None


def _duplicates(stack: Stack) -> List[Finding]:
    findings = []
    for name in ("torch", "torch-npu"):
        versions = sorted({package.version for package in stack.all_of(name)})
        if len(versions) > 1:
            text = f"Remove all of them with `pip uninstall {name}`, until it says that there is none; install one."
            findings.append(
                _fail(f"{name} is installed more than once: {' and '.join(versions)}", text, TORCH_MISMATCH)
            )
    return findings


def _torch_with_torch_npu(torch: str, torch_npu: str) -> List[Finding]:
    """Compare the releases: a torch_npu is built for exactly one torch and carries its number."""
    if torch_npu == torch or torch_npu.startswith((f"{torch}.post", f"{torch}rc", f"{torch}.dev")):
        return []
    base = torch_npu.partition(".post")[0]
    text = f"Install torch {base}, or the torch_npu of torch {torch}."
    return [_fail(f"torch_npu {torch_npu} is built for torch {base}, not for {torch}", text, TORCH_MISMATCH)]


def _python(torch: str, python: str) -> List[Finding]:
    row = next((row for row in load_facts("torch_python")["rows"] if row["torch"] == torch), None)
    if row is None or python in row["python"]:
        return []
    said = f"Python {python} is none that torch_npu is made for with torch {torch} ({', '.join(row['python'])})"
    text = f"Make the environment of ascendd with Python {row['python'][-1]}, or with another torch."
    return [_fail(said, text, PREFLIGHT)]


def _cann(torch: str, torch_npu: str, cann: str, wanted: str) -> List[Finding]:
    of_cann = _rows_of(cann)
    if not of_cann:
        said = f"nothing is published on CANN {cann} with torch {torch}"
        text = "Look the pair up in the vendor's table, or try it and permit it in /etc/ascendd/policy.json."
        return [Finding(Verdict.WARN, said, Remedy(PREFLIGHT, text, _LIST))]
    of_torch = [row for row in of_cann if row["torch"] == torch]
    if not of_torch:
        said = f"torch {torch} is not listed for CANN {cann}, for which the vendor lists {wanted}"
        text = f"Install {wanted}, or the CANN release that torch {torch} is made for."
        return [_fail(said, text, PREFLIGHT)]
    if any(row["torch_npu"] == torch_npu for row in of_torch):
        return []
    listed = " or ".join(dict.fromkeys(row["torch_npu"] for row in of_torch))
    other = next((row["cann"] for row in load_facts("torch_cann")["pairs"] if row["torch_npu"] == torch_npu), None)
    made_for = f", it is made for {other}" if other else ""
    said = f"torch_npu {torch_npu} is not the one listed for CANN {cann}{made_for}"
    text = f"Install torch_npu {listed}."
    return [Finding(Verdict.WARN, said, Remedy(TORCH_MISMATCH, text, _LIST))]


def _fail(said: str, text: str, code: str) -> Finding:
    return Finding(Verdict.FAIL, said, Remedy(code, text, _LIST))
