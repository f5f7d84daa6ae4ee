"""Speed: how fast each chip multiplies matrices and moves memory, against its specification and its neighbours."""

from __future__ import annotations

import json
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ascendd.errors import ProbeError, ProbeTimeout
from ascendd.host.chip_speed import MATMUL, MEMORY, shares, specified_speed
from ascendd.host.command import run_command
from ascendd.host.policy import VersionPolicy, read_policy
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Tier, Verdict, conclude, conclude_with
from ascendd.preflight.context import CheckContext

DEVICE_FAULT, DEVICE_SLOW = "ASD-D01", "ASD-D08"
CHIP_TIMEOUT_S = 100.0
AT_ONCE = 16
# A chip this far below the middle of its neighbours is ill, whatever its specification.
BESIDE_NEIGHBOURS = 0.8
_LABELS = {MATMUL: ("matmul", "TFLOP/s"), MEMORY: ("memory", "GB/s")}
_COOL = (
    "Look at its temperature and power, end whatever else runs on it, and measure again. A chip that stays slow beside "
    "its neighbours is throttled or broken: reset it, then have it replaced."
)


@dataclass(frozen=True)
class ChipRun:
    """What came of one chip: its answer, or why there is none."""

    chip: int
    answer: Mapping[str, Any]
    failure: Optional[str] = None


class NpuSpeed(NpuCheck):
    """Each chip of the instance, all of the host without one; they need the devices for themselves."""

    id = "npu-speed"
    title = "NPU speed"
    tier = Tier.DEEP
    requires = ("acl-runtime", "site-policy")
    # Each chip has its own limit, which knows what hangs.
    timeout_s = CHIP_TIMEOUT_S + 20.0

    def run(self, context: CheckContext) -> CheckResult:
        """Measure every chip in a process of its own, with the service's environment."""
        policy = read_policy(context.files)
        chips = sorted(context.logical_devices() or range(_count(context)))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            runs = list(pool.map(lambda chip: measure(context, chip), chips))
        return judge(runs, policy)


def _count(context: CheckContext) -> int:
    counted = context.acl_count(context.files, context.service().variables, 30.0 * context.request.patience)
    return counted.count or 0


def measure(context: CheckContext, chip: int) -> ChipRun:
    """Run ascendd.device.chip_bench on one chip; a chip that hangs takes nobody else's answer along."""
    environ = {
        **context.service().variables,
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "ASCEND_RT_VISIBLE_DEVICES": str(chip),
    }
    argv = [sys.executable, "-m", "ascendd.device.chip_bench"]
    limit_s = CHIP_TIMEOUT_S * context.request.patience
    try:
        outcome = run_command(argv, limit_s, environ, stdin=json.dumps({"device": 0}))
    except ProbeTimeout as late:
        steps = [line["step"] for line in answers(str(late.facts.get("stdout", ""))) if "step" in line]
        return ChipRun(chip, {}, f"hangs: `{steps[-1] if steps else 'start'}` took more than {limit_s:g} s")
    except ProbeError as error:
        return ChipRun(chip, {}, error.message)
    last = (answers(outcome.stdout) or [{}])[-1]
    if "speed" in last or "fault" in last:
        return ChipRun(chip, last)
    lines = [line for line in outcome.stderr.splitlines() if line.strip()]
    said = lines[-1].strip()[:300] if lines else "no output"
    return ChipRun(chip, {}, f"the measurement ended with status {outcome.status}: {said}")


def answers(stdout: str) -> List[Dict[str, Any]]:
    """Decode the lines that are ours; vendor libraries print to standard output, too."""
    lines = []
    for line in stdout.splitlines():
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if isinstance(message, dict):
            lines.append(message)
    return lines


def judge(runs: Sequence[ChipRun], policy: VersionPolicy) -> CheckResult:
    """Decide over all chips; each number stands beside the one that it is held to."""
    if not runs:
        return conclude_with(Finding(Verdict.FAIL, "ACL counts no device", Remedy("ASD-D02", "See acl-runtime.")), {})
    findings: List[Finding] = []
    measured: Dict[int, Mapping[str, Any]] = {}
    for run in runs:
        if run.failure is not None:
            remedy = Remedy(DEVICE_FAULT, "Run `npu-smi info`, then reset the chip while nothing uses it.")
            findings.append(Finding(Verdict.ERROR, f"chip {run.chip} {run.failure}", remedy))
        elif "fault" in run.answer:
            fault = run.answer["fault"]
            remedy = Remedy(fault["code"], fault["remedy"] or "")
            findings.append(Finding(Verdict.FAIL, f"chip {run.chip}: {fault['message']}", remedy))
        else:
            measured[run.chip] = run.answer["speed"]
    evidence: Dict[str, Any] = {"chips": [{"chip": chip, **speed} for chip, speed in measured.items()]}
    for chip, speed in measured.items():
        if speed["wrong"]:
            remedy = Remedy(DEVICE_FAULT, "Take this chip out of service: its answers are wrong.", ("npu-smi info",))
            findings.append(Finding(Verdict.FAIL, f"chip {chip} computes wrongly: {speed['wrong']}", remedy))
        findings += _of_specification(chip, speed, policy, evidence)
    for key in _LABELS:
        findings += _of_neighbours(key, {chip: float(speed[key]) for chip, speed in measured.items()})
    return conclude(findings, f"{len(measured)} chip(s): {_ranges(list(measured.values()))}", evidence)


def _of_specification(
    chip: int, speed: Mapping[str, Any], policy: VersionPolicy, evidence: Dict[str, Any]
) -> List[Finding]:
    specified = specified_speed(speed["soc_name"], policy.chip_speed, policy.site_file)
    evidence.setdefault("specified", {})[speed["soc_name"]] = {**specified.speeds, "origin": specified.origin}
    unknown = [_LABELS[key][0] for key in _LABELS if key not in specified.speeds]
    if unknown:
        text = f"Measure a sound one and write its speeds into the policy, under chip_speed and {speed['soc_name']}."
        said = f"no {' and '.join(unknown)} speed is specified for {speed['soc_name']}, so chip {chip} was not judged"
        return [Finding(Verdict.WARN, said, Remedy(DEVICE_SLOW, text))]
    findings = []
    for key, (label, unit) in _LABELS.items():
        share = float(speed[key]) / specified.speeds[key]
        verdict = Verdict.FAIL if share < shares()["fail_below"] else Verdict.WARN
        if share < shares()["warn_below"]:
            said = (
                f"chip {chip} ({speed['soc_name']}): {label} {_number(speed[key])} {unit}, {share:.0%} of the "
                f"{_number(specified.speeds[key])} {unit} specified ({specified.origin})"
            )
            findings.append(Finding(verdict, said, Remedy(DEVICE_SLOW, _COOL, ("npu-smi info",))))
    return findings


def _of_neighbours(key: str, speeds: Mapping[int, float]) -> List[Finding]:
    if len(speeds) < 3:  # of two nobody can say which is the odd one
        return []
    middle, (label, unit) = statistics.median(speeds.values()), _LABELS[key]
    return [
        Finding(
            Verdict.FAIL,
            f"chip {chip}: {label} {_number(speed)} {unit}, {speed / middle:.0%} of the {_number(middle)} {unit} "
            "of its neighbours",
            Remedy(DEVICE_SLOW, _COOL, ("npu-smi info",)),
        )
        for chip, speed in speeds.items()
        if speed < BESIDE_NEIGHBOURS * middle
    ]


def _ranges(speeds: Sequence[Mapping[str, Any]]) -> str:
    if not speeds:
        return "none measured"
    parts = []
    for key, (label, unit) in _LABELS.items():
        low, high = (_number(pick(float(speed[key]) for speed in speeds)) for pick in (min, max))
        parts.append(f"{label} {low if low == high else f'{low} to {high}'} {unit}")
    return ", ".join(parts)


def _number(value: Any) -> str:
    return f"{float(value):.4g}"
