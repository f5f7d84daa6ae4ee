"""Plan: weights, KV cache and reserve fit the memory of each chip of the instance, before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from ascendd.errors import AscenddError
from ascendd.host.npu_smi_table import NpuChip
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude, conclude_with
from ascendd.preflight.chips import in_use, read_report
from ascendd.preflight.context import CheckContext
from ascendd.preflight.target import Target

TOO_FEW_CHIPS = "ASD-G03"
_MB = 1 << 20


class PlanFits(NpuCheck):
    """What is configured fits the chips."""

    id = "plan-fits"
    title = "Memory plan"
    requires = ("npu-presence", "model-artefact")

    def skip_reason(self, target: Target) -> Optional[str]:
        """Skip without a model; on a CPU, host-memory does this."""
        return super().skip_reason(target) or (None if target.has_model else "no model named")

    def run(self, context: CheckContext) -> CheckResult:
        """Compute the plan with the memory that npu-smi shows."""
        config = context.config
        if config is None:
            from ascendd.config.schema import InstanceConfig, ModelSection

            config = InstanceConfig(model=ModelSection(path=str(context.model_path)))
        chips = in_use(read_report(context).chips, context.logical_devices())
        wanted = len(context.logical_devices() or {0})
        return judge(config, str(context.model_path), chips, wanted)


def judge(config: Any, model_path: str, chips: Sequence[NpuChip], num_wanted: int) -> CheckResult:
    """Decide by the smallest chip; the same arithmetic as `ascendd plan` and as the engine at its start."""
    from ascendd.config.model_facts import read_model_facts
    from ascendd.config.plan import DeviceFacts
    from ascendd.config.quantity import format_bytes
    from ascendd.config.resolve import resolve

    sizes = [chip.hbm_total_mb for chip in chips if chip.hbm_total_mb]
    evidence: Dict[str, Any] = {"chips": [chip.label for chip in chips], "hbm_total_mb": sizes, "wanted": num_wanted}
    if len(chips) < num_wanted:
        said = f"the instance wants {num_wanted} chips, of which this host has {len(chips)}"
        text = "Lower tensor_parallel_size or pipeline_parallel_size, or correct parallel.devices."
        return conclude_with(Finding(Verdict.FAIL, said, Remedy(TOO_FEW_CHIPS, text, ("npu-smi info -l",))), evidence)
    if not sizes:
        return CheckResult(Verdict.SKIPPED, "npu-smi shows no size of memory", evidence)
    smallest = min(sizes) * _MB
    device = DeviceFacts(
        kind="npu",
        name=chips[0].name or "an NPU",
        total_bytes=smallest,
        free_bytes=smallest,
        fast_dtypes=("float16", "bfloat16", "float32"),
        block_sizes=(128, 64, 32, 16),
    )
    findings: List[Finding] = []
    told = ""
    try:
        plan = resolve(config, read_model_facts(Path(model_path)), device).plan
    except AscenddError as error:
        commands = (f"ascendd plan {model_path} --device-memory {smallest}",)
        findings.append(Finding(Verdict.FAIL, error.message, Remedy(error.code, error.remedy, commands)))
    else:
        evidence.update(
            weights_bytes=plan.weights_bytes, kv_bytes=plan.kv_bytes, reserve_bytes=plan.reserve_bytes,
            budget_bytes=plan.budget_bytes, num_blocks=plan.num_blocks,
        )  # fmt: skip
        parts = f"{format_bytes(plan.weights_bytes)} weights + {format_bytes(plan.kv_bytes)} KV cache"
        told = f"{parts} + {format_bytes(plan.reserve_bytes)} reserve of {format_bytes(smallest)} on each chip"
    return conclude(findings, told, evidence)
