"""All-reduce: the chips of the instance add numbers up together, and the sum is right."""

from __future__ import annotations

import json
import sys
from typing import Any, Dict, List

from ascendd.errors import ProbeTimeout
from ascendd.host.chip_speed import ALL_REDUCE, shares, specified_speed
from ascendd.host.command import CommandOutcome, run_command
from ascendd.host.policy import VersionPolicy, read_policy
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Tier, Verdict, conclude, conclude_with
from ascendd.preflight.context import CheckContext

COLLECTIVE, DEVICE_FAULT, DEVICE_SLOW = "ASD-E05", "ASD-D01", "ASD-D08"
# Of the ranks together; HCCL's own limits are longer than anybody would wait here.
GROUP_TIMEOUT_S = 90.0
_LINKS = "Check the links and that all chips are of one HCCS group: `ascendd doctor --only hccl-link,npu-topology`."


class HcclAllReduce(NpuCheck):
    """What tensor parallelism does at each layer, without a model."""

    id = "hccl-all-reduce"
    title = "HCCL all-reduce"
    tier = Tier.DEEP
    requires = ("acl-runtime", "site-policy")
    timeout_s = GROUP_TIMEOUT_S + 30.0

    def run(self, context: CheckContext) -> CheckResult:
        """Run a rank on each chip of the instance, or on all of the host without one."""
        counted = context.acl_count(context.files, context.service().variables, 30.0 * context.request.patience)
        chips = sorted(context.logical_devices() or range(counted.count or 0))
        if len(chips) < 2:
            return CheckResult(Verdict.SKIPPED, "one chip has nobody to add up with")
        policy, limit_s = read_policy(context.files), GROUP_TIMEOUT_S * context.request.patience
        environ = {
            **context.service().variables,
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "ASCEND_RT_VISIBLE_DEVICES": ",".join(map(str, chips)),
        }
        request = {"world_size": len(chips), "limit_s": limit_s}
        argv = [sys.executable, "-m", "ascendd.device.all_reduce_bench"]
        try:
            # The launcher and its ranks are one process group, so none of them outlives this.
            outcome = run_command(argv, limit_s + 10.0, environ, stdin=json.dumps(request))
        except ProbeTimeout as late:
            finding = Finding(Verdict.ERROR, f"the ranks on chips {chips} hang: {late.message}", _remedy(_LINKS))
            return conclude_with(finding, {"chips": chips})
        return judge(outcome, chips, policy)


def judge(outcome: CommandOutcome, chips: List[int], policy: VersionPolicy) -> CheckResult:
    """Decide by the launcher's answer. Speed is judged only where the site says what it should be."""
    answer = _answer(outcome.stdout)
    evidence: Dict[str, Any] = {"chips": chips, **answer}
    if "failed" in answer:
        failed = answer["failed"]
        chip, said = chips[failed["rank"]], failed["said"]
        text = f"chip {chip} failed at `{failed['step']}`: {said}"
        return conclude_with(Finding(Verdict.FAIL, text, _remedy(_LINKS)), evidence)
    if "all_reduce" not in answer:
        evidence["stderr"] = outcome.stderr[-2000:]
        said = f"the launcher ended with status {outcome.status} and no answer"
        return conclude_with(Finding(Verdict.FAIL, said, _remedy(_LINKS)), evidence)
    result = answer["all_reduce"]
    findings = []
    if result["wrong"]:
        said = f"the sum over chips {chips} is wrong on {result['wrong']}"
        text = "Take the chips of this group out of service one after another until the sum is right."
        findings.append(Finding(Verdict.FAIL, said, Remedy(DEVICE_FAULT, text)))
    specified = specified_speed(result["soc_name"], policy.chip_speed, policy.site_file)
    wanted, speed = specified.speeds.get(ALL_REDUCE), float(result["gb_per_s"])
    if wanted is not None and speed < shares()["warn_below"] * wanted:
        verdict = Verdict.FAIL if speed < shares()["fail_below"] * wanted else Verdict.WARN
        said = f"{speed:.4g} GB/s a chip, {speed / wanted:.0%} of the {wanted:.4g} GB/s that {specified.origin} wants"
        findings.append(Finding(verdict, said, Remedy(DEVICE_SLOW, _LINKS, ("npu-smi info -t topo",))))
    size = f"{result['bytes'] >> 20} MiB"
    return conclude(findings, f"{len(chips)} chips add up {size} rightly at {speed:.4g} GB/s a chip", evidence)


def _answer(stdout: str) -> Dict[str, Any]:
    for line in reversed(stdout.splitlines()):
        try:
            answer = json.loads(line)
        except ValueError:
            continue
        if isinstance(answer, dict) and ("failed" in answer or "all_reduce" in answer):
            return answer
    return {}


def _remedy(text: str) -> Remedy:
    return Remedy(COLLECTIVE, text, ("npu-smi info", "npu-smi info -t topo"))
