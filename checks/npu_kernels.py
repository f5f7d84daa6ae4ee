"""Fused kernels: each runs on small inputs beside a plain computation of the same, on the device of the instance."""

from __future__ import annotations

import json
import sys
from typing import Any, Dict

from ascendd.host.command import CommandOutcome, run_command
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Tier, Verdict, conclude, conclude_with
from ascendd.preflight.context import CheckContext

KERNEL_REPLACED = "ASD-D07"
TIMEOUT_S = 110.0


class NpuKernels(NpuCheck):
    """What the engine proves at each start, without a start."""

    id = "npu-kernels"
    title = "NPU kernels"
    tier = Tier.DEEP
    requires = ("acl-runtime",)
    timeout_s = TIMEOUT_S + 10.0  # the proof has its own limit, which says more

    def run(self, context: CheckContext) -> CheckResult:
        """Prove the kernels in a process with the service's environment; they need the device for themselves."""
        config = context.config
        request = {
            "device": 0,
            "model_path": context.model_path,
            "tensor_parallel_size": 1 if config is None else config.parallel.tensor_parallel_size,
        }
        environ = {
            **context.service().variables,
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "ASCEND_RT_VISIBLE_DEVICES": str(min(context.logical_devices() or {0})),
        }
        argv = [sys.executable, "-m", "ascendd.device.kernel_check"]
        return judge(run_command(argv, TIMEOUT_S * context.request.patience, environ, stdin=json.dumps(request)))


def judge(outcome: CommandOutcome) -> CheckResult:
    """Decide by the last line of the child's output; vendor libraries print to it, too."""
    answer = _answer(outcome.stdout)
    if not answer:
        said = f"the proof ended with status {outcome.status} and no answer"
        remedy = Remedy("ASD-D02", "Read the last lines of its output; most often torch_npu cannot be imported.")
        evidence = {"status": outcome.status, "stderr": outcome.stderr[-2000:]}
        return conclude_with(Finding(Verdict.FAIL, said, remedy), evidence)
    if "fault" in answer:
        fault = answer["fault"]
        return conclude_with(Finding(Verdict.FAIL, fault["message"], Remedy(fault["code"], fault["remedy"])), answer)
    verdicts = answer["verdicts"]
    remedy = Remedy(KERNEL_REPLACED, "Install the operator package of this CANN version and chip, and look again.")
    findings = [
        Finding(Verdict.WARN, f"{verdict['kernel']} is replaced by the reference: {verdict['detail']}", remedy)
        for verdict in verdicts
        if not verdict["passed"]
    ]
    if not verdicts:
        findings = [Finding(Verdict.WARN, f"{answer['device']} uses no fused kernel, so steps are slow")]
    return conclude(
        findings, f"{len(verdicts)} fused kernels give the reference's numbers on {answer['device']}", answer
    )


def _answer(stdout: str) -> Dict[str, Any]:
    for line in reversed(stdout.splitlines()):
        try:
            answer = json.loads(line)
        except ValueError:
            continue
        if isinstance(answer, dict) and ("verdicts" in answer or "fault" in answer):
            return answer
    return {}
