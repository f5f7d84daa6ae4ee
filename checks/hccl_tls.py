"""TLS between chips: the switch must be the same everywhere, or HCCL does not connect across servers."""

from __future__ import annotations

from typing import Dict, List, Mapping, Union

from ascendd.errors import ProbeError, ProbeTimeout
from ascendd.host.hccn_tool import HccnTool, find_hccn_tool
from ascendd.host.npu_smi import ask_each
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude
from ascendd.preflight.chips import in_use, read_report
from ascendd.preflight.context import CheckContext

TLS_MISMATCH = "ASD-G46"
_COMMANDS = ("for i in $(seq 0 7); do hccn_tool -i $i -tls -g; done",)


class HcclTls(NpuCheck):
    """All chips agree on TLS."""

    id = "hccl-tls"
    title = "HCCL TLS switch"
    requires = ("npu-presence", "npu-security")
    timeout_s = 60.0

    def run(self, context: CheckContext) -> CheckResult:
        """Ask hccn_tool for the switch of each chip."""
        path = find_hccn_tool(context.files)
        if path is None:
            return CheckResult(Verdict.SKIPPED, "no hccn_tool: these chips have no network ports, or it is not mounted")
        tool = HccnTool(path, context.run, context.environ)
        chips = in_use(read_report(context).chips, context.logical_devices())
        return judge(ask_each([chip.physical_id for chip in chips if chip.physical_id is not None], tool.tls_is_on))


def judge(switches: Mapping[int, Union[bool, ProbeError]]) -> CheckResult:
    """Decide over the switches by physical id; a chip that has none is left out."""
    known: Dict[int, bool] = {one: is_on for one, is_on in switches.items() if isinstance(is_on, bool)}
    errors = {one: error for one, error in switches.items() if isinstance(error, ProbeError)}
    evidence = {
        "on": [one for one, is_on in known.items() if is_on],
        "off": [one for one, is_on in known.items() if not is_on],
        "unknown": {str(one): error.message for one, error in errors.items()},
    }
    findings: List[Finding] = []
    if len(set(known.values())) > 1:
        said = f"TLS is on for chips {_ids(known, wanted=True)} and off for {_ids(known, wanted=False)}"
        text = "Switch it alike on every chip of every server of the group, then restart the instance."
        remedy = Remedy(TLS_MISMATCH, text, (*_COMMANDS, "hccn_tool -i ID -tls -s enable 0"))
        findings.append(Finding(Verdict.FAIL, said, remedy))
    for one, error in errors.items():
        late = isinstance(error, ProbeTimeout)
        said = f"chip {one}: {error.message}"
        if late or known:
            findings.append(
                Finding(Verdict.ERROR, said, Remedy(TLS_MISMATCH, "Ask hccn_tool by hand, as root.", _COMMANDS))
            )
    if not known and not findings:
        return CheckResult(Verdict.SKIPPED, "hccn_tool tells no TLS switch of these chips", evidence)
    state = "on" if evidence["on"] else "off"
    return conclude(findings, f"{state} on {len(known)} chip(s)", evidence)


def _ids(known: Mapping[int, bool], *, wanted: bool) -> str:
    return ", ".join(str(one) for one, is_on in known.items() if is_on is wanted)
