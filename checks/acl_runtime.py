"""ACL runtime: the library loads, a device opens, memory is taken, copied both ways, compared and given back."""

from __future__ import annotations

from ascendd.host.acl import ROUND_TRIP_BYTES, ROUND_TRIP_TIMEOUT_S, AclOutcome
from ascendd.host.libraries import is_stub
from ascendd.host.vendor_facts import describe_code
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude, conclude_with
from ascendd.preflight.context import CheckContext

DEVICE_FAULT, DEVICE_UNAVAILABLE = "ASD-D01", "ASD-D02"
STUB_LIBRARY = 100039


class AclRuntime(NpuCheck):
    """CANN and the device work together, tried with the service's environment."""

    id = "acl-runtime"
    title = "ACL runtime"
    requires = ("npu-presence", "npu-security", "vendor-libraries")
    # Longer than the probe's own limit, which knows the call that hangs.
    timeout_s = ROUND_TRIP_TIMEOUT_S + 15.0

    def run(self, context: CheckContext) -> CheckResult:
        """Try the first device of the instance. A device that hangs ends in ProbeTimeout, which is ERROR."""
        device = min(context.logical_devices() or {0})
        limit_s = ROUND_TRIP_TIMEOUT_S * context.request.patience
        return judge(context.acl_round_trip(context.files, context.service().variables, device, limit_s), device)


def judge(outcome: AclOutcome, device: int) -> CheckResult:
    """Decide; a known code brings its own cause and remedy."""
    evidence = {
        "library": outcome.library,
        "device": device,
        "count": outcome.count,
        "soc_name": outcome.soc_name,
        "free_bytes": outcome.free_bytes,
        "total_bytes": outcome.total_bytes,
        "failed_step": outcome.failed_step,
        "code": outcome.code,
        "text": outcome.text,
    }
    if is_stub(outcome.library):
        said = f"{outcome.library} is a stub for compiling"
        remedy = Remedy(DEVICE_FAULT, "Drop devlib and stub folders from LD_LIBRARY_PATH.")
        return conclude_with(Finding(Verdict.FAIL, said, remedy), evidence)
    if outcome.failed_step is not None:
        known = describe_code("acl_codes", outcome.code) or {}
        name = f"{known['name']} {outcome.code}" if known else ("" if outcome.code == -1 else f"code {outcome.code}")
        said = ": ".join(part for part in (f"{outcome.failed_step} failed", name, outcome.text) if part)
        cause = f"Usual cause: {known['cause']} " if known else ""
        text = cause + (known.get("remedy") or "Read the plog of the failed call and the kernel log.")
        commands = ("npu-smi info", "ls -t ~/ascend/log/debug/plog | head -1", "dmesg | tail -50")
        return conclude_with(Finding(Verdict.FAIL, said, Remedy(DEVICE_FAULT, text, commands)), evidence)
    if not outcome.count:
        remedy = Remedy(DEVICE_UNAVAILABLE, "Unset ASCEND_RT_VISIBLE_DEVICES and look again.")
        return conclude_with(Finding(Verdict.FAIL, "ACL counts no device", remedy), evidence)
    chip = outcome.soc_name or "unnamed chip"
    sizes = f"{outcome.free_bytes / 2**30:.1f} of {outcome.total_bytes / 2**30:.1f} GiB free"
    return conclude([], f"device {device} ({chip}): {ROUND_TRIP_BYTES >> 20} MiB there and back, {sizes}", evidence)
