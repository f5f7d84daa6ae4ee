"""Links: the network ports of the instance's chips are up; one server alone talks over HCCS and only warns."""

from __future__ import annotations

from typing import Dict, List, Mapping, Tuple, Union

from ascendd.errors import ProbeError
from ascendd.host.hccn_tool import HccnTool, PortLinks, find_hccn_tool, is_without
from ascendd.host.npu_smi import ask_each
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude
from ascendd.preflight.chips import in_use, read_report
from ascendd.preflight.context import CheckContext

LINK_DOWN = "ASD-G41"
# `Init`: no address to detect is configured, as on a server that works alone.
SOUND_NETWORK = ("Success", "Init", "Detect ip set")
Link = Tuple[Union[PortLinks, ProbeError], Union[str, ProbeError]]


class HcclLink(NpuCheck):
    """The chips' own network ports are up."""

    id = "hccl-link"
    title = "HCCL links"
    live = True
    requires = ("npu-presence", "npu-security")
    timeout_s = 90.0

    def run(self, context: CheckContext) -> CheckResult:
        """Ask hccn_tool for link and network health of each chip."""
        path = find_hccn_tool(context.files)
        if path is None:
            return CheckResult(Verdict.SKIPPED, "no hccn_tool: these chips have no network ports, or it is not mounted")
        tool = HccnTool(path, context.run, context.environ)
        chips = in_use(read_report(context).chips, context.logical_devices())
        ids = [chip.physical_id for chip in chips if chip.physical_id is not None]
        links, networks = ask_each(ids, tool.link), ask_each(ids, tool.net_health)
        return judge({one: (links[one], networks[one]) for one in ids})


def judge(chips: Mapping[int, Link]) -> CheckResult:
    """Decide over (link, network health) by physical id; what cannot be read is no pass."""
    evidence: Dict[str, Dict[str, str]] = {
        str(one): {
            "link": link.state if isinstance(link, PortLinks) else link.message,
            "net_health": network if isinstance(network, str) else network.message,
        }
        for one, (link, network) in chips.items()
    }
    findings: List[Finding] = []
    for one, (link, network) in chips.items():
        commands = (
            f"hccn_tool -i {one} -link -g",
            f"hccn_tool -i {one} -link_stat -g",
            f"hccn_tool -i {one} -optical -g",
        )
        if isinstance(link, ProbeError):
            text = "Ask hccn_tool by hand, as root."
            findings.append(
                Finding(Verdict.ERROR, f"chip {one}: {link.message}", Remedy(LINK_DOWN, text, commands), str(one))
            )
        elif link.state != "UP":
            ports = ", ".join(f"port {port} {state}" for port, state in link.ports if state != "UP")
            text = (
                "Check cable, optical module and switch port. On one server alone HCCS carries the traffic, so this is "
                "only a warning; an instance over several servers would not start."
            )
            said = f"chip {one}: link {link.state}" + (f" ({ports})" if ports else "")
            findings.append(Finding(Verdict.WARN, said, Remedy(LINK_DOWN, text, commands), str(one)))
        elif isinstance(network, ProbeError) and not is_without(network):
            text = "Ask hccn_tool by hand, as root."
            remedy = Remedy(LINK_DOWN, text, (f"hccn_tool -i {one} -net_health -g",))
            findings.append(Finding(Verdict.ERROR, f"chip {one}: {network.message}", remedy, str(one)))
        elif isinstance(network, str) and network not in SOUND_NETWORK:
            text = "The address that the chip is to detect does not answer: check it with `hccn_tool -netdetect -g`."
            said = f"chip {one}: network {network}"
            findings.append(
                Finding(Verdict.WARN, said, Remedy(LINK_DOWN, text, (f"hccn_tool -i {one} -net_health -g",)), str(one))
            )
    words = sorted({network for _, network in chips.values() if isinstance(network, str)})
    return conclude(findings, f"{len(chips)} link(s) up, network {', '.join(words) or 'not measured'}", evidence)
