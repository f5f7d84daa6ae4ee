"""Vendor sample: the vendor's own ACL inference (ResNet-50) builds and ends with its success line."""

from __future__ import annotations

from ascendd.host.vendor_sample import VendorSampleOutcome, find_sample, run_vendor_sample
from ascendd.host.version_files import read_cann
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude, conclude_with
from ascendd.preflight.context import CheckContext

DEVICE_FAULT = "ASD-D01"


class VendorSample(NpuCheck):
    """The vendor's sample runs, where it and a model for it are installed."""

    id = "vendor-sample"
    title = "Vendor's ACL sample"
    requires = ("acl-sample",)
    timeout_s = 120.0

    def run(self, context: CheckContext) -> CheckResult:
        """Build a copy and run it; without sample, model or CMake there is nothing to run."""
        environ = context.service().variables
        toolkits = read_cann(context.files, environ)
        if not toolkits:
            return CheckResult(Verdict.SKIPPED, "no CANN toolkit is installed")
        root = toolkits[0].root
        sample, missing = find_sample(context.files, root)
        if sample is None:
            return CheckResult(Verdict.SKIPPED, missing)
        patience = context.request.patience
        outcome = run_vendor_sample(context.files, environ, sample, root, run=context.run, patience=patience)
        if outcome is None:
            return CheckResult(Verdict.SKIPPED, f"{sample} cannot be built: cmake or make is not installed")
        return judge(outcome, sample)


def judge(outcome: VendorSampleOutcome, sample: str) -> CheckResult:
    """Decide by its success line and its exit status, both."""
    evidence = {"sample": sample, "step": outcome.step, "status": outcome.status, "last_lines": list(outcome.lines)}
    if outcome.is_success:
        return conclude([], f"{sample} ran: execute sample success", evidence)
    errors = [line for line in outcome.lines if "error" in line.lower()]
    said = (errors or outcome.lines or ("nothing",))[-1]
    if outcome.step != "run":
        text = "Compilers and CANN do not fit; compare with the requirements in the sample's README."
        finding = Finding(Verdict.FAIL, f"{sample}: {outcome.step} failed: {said}", Remedy(DEVICE_FAULT, text))
        return conclude_with(finding, evidence)
    text = "The model must be converted for this chip (atc --soc_version); then read the plog of the failed call."
    commands = ("npu-smi info", "ls -t ~/ascend/log/debug/plog | head -1")
    said = f"{sample} ended with status {outcome.status} and no success line: {said}"
    return conclude_with(Finding(Verdict.FAIL, said, Remedy(DEVICE_FAULT, text, commands)), evidence)
