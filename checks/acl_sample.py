"""ACL sample: a small C program against CANN's headers compiles, links, opens a device and copies both ways."""

from __future__ import annotations

from ascendd.host.acl_sample import SampleOutcome, find_kit, run_sample
from ascendd.host.vendor_facts import describe_code
from ascendd.host.version_files import read_cann
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude, conclude_with
from ascendd.preflight.context import CheckContext

DEVICE_FAULT = "ASD-D01"


class AclSample(NpuCheck):
    """What is compiled here against CANN runs here."""

    id = "acl-sample"
    title = "ACL sample in C"
    # Beside the Python round trip this would fight for the same device.
    requires = ("acl-runtime",)
    timeout_s = 120.0

    def run(self, context: CheckContext) -> CheckResult:
        """Compile and run it where there are headers and a compiler."""
        environ = context.service().variables
        toolkits = read_cann(context.files, environ)
        if not toolkits:
            return CheckResult(Verdict.SKIPPED, "no CANN toolkit is installed")
        kit, missing = find_kit(context.files, environ, toolkits[0].root)
        if kit is None:
            return CheckResult(Verdict.SKIPPED, missing)
        device = min(context.logical_devices() or {0})
        patience = context.request.patience
        outcome = run_sample(context.files, environ, kit, device, run=context.run, patience=patience)
        return judge(outcome, device, kit.compiler)


def judge(outcome: SampleOutcome, device: int, compiler: str) -> CheckResult:
    """Decide by its success line and its exit status, both."""
    evidence = {
        "device": device,
        "compiler": compiler,
        "step": outcome.step,
        "status": outcome.status,
        "calls": dict(outcome.calls),
        "said": outcome.said,
    }
    if outcome.is_success:
        return conclude([], f"compiled, opened device {device}, copied both ways and compared", evidence)
    if outcome.step == "compile":
        said = f"{compiler.rpartition('/')[2]} does not compile it: {outcome.said}"
        text = "Compiler, headers and libascendcl.so must be of one architecture; install the toolkit again if not."
        return conclude_with(Finding(Verdict.FAIL, said, Remedy(DEVICE_FAULT, text)), evidence)
    commands = ("npu-smi info", "ls -t ~/ascend/log/debug/plog | head -1")
    if outcome.changed_at is not None:
        said = f"device memory came back changed: first difference at byte {outcome.changed_at}"
        text = "Take the chip out of parallel.devices, collect device logs and have it replaced."
        return conclude_with(Finding(Verdict.FAIL, said, Remedy(DEVICE_FAULT, text, commands)), evidence)
    if outcome.failed_call is not None:
        name, code = outcome.failed_call
        known = describe_code("acl_codes", code) or {}
        said = f"{name} returned {known.get('name', 'code')} {code}"
        text = f"Usual cause: {known['cause']} {known['remedy']}" if known else "Read the plog of the failed call."
        return conclude_with(Finding(Verdict.FAIL, said, Remedy(DEVICE_FAULT, text, commands)), evidence)
    last = outcome.calls[-1][0] if outcome.calls else "its start"
    how = f"signal {outcome.status - 128}" if outcome.status > 128 else f"status {outcome.status}"
    said = f"it ended with {how} after {last}: {outcome.said}"
    return conclude_with(
        Finding(Verdict.FAIL, said, Remedy(DEVICE_FAULT, "Read the plog and dmesg.", commands)), evidence
    )
