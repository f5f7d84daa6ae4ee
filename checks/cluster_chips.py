"""Network of the chips: over several hosts each chip needs an address of its own, a link, and sound health."""

from __future__ import annotations

from collections import Counter
from typing import Dict, List, Mapping, Optional, Tuple, Union

from ascendd.errors import ProbeError
from ascendd.host.hccn_tool import HccnTool, PortLinks, find_hccn_tool
from ascendd.host.npu_smi import ask_each
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude
from ascendd.preflight.chips import in_use, read_report
from ascendd.preflight.cluster import ONE_HOST, cluster_of
from ascendd.preflight.context import CheckContext

LINK_DOWN = "ASD-G41"
# `Init` and `Detect ip set`: nobody gave the chip an address to detect, so nothing is known.
SOUND = ("Success", "Init", "Detect ip set")
Address = Union[Optional[Tuple[str, str]], ProbeError]


class ClusterChips(NpuCheck):
    """The chips can talk to those of other hosts."""

    id = "cluster-chips"
    title = "Network of the chips"
    requires = ("npu-presence", "npu-security")
    timeout_s = 120.0

    def run(self, context: CheckContext) -> CheckResult:
        """Ask hccn_tool for address, link and network health of each chip."""
        if cluster_of(context) is None:
            return ONE_HOST
        path = find_hccn_tool(context.files)
        if path is None:
            text = "Mount hccn_tool of the driver, or use chips with network ports: HCCS does not leave a host."
            return conclude(
                [Finding(Verdict.FAIL, "no hccn_tool: these chips have no network", Remedy(LINK_DOWN, text))], "", {}
            )
        tool = HccnTool(path, context.run, context.environ)
        chips = in_use(read_report(context).chips, context.logical_devices())
        ids = [chip.physical_id for chip in chips if chip.physical_id is not None]
        return judge(ask_each(ids, tool.address), ask_each(ids, tool.link), ask_each(ids, tool.net_health))


def judge(
    addresses: Mapping[int, Address],
    links: Mapping[int, Union[PortLinks, ProbeError]],
    networks: Mapping[int, Union[str, ProbeError]],
) -> CheckResult:
    """Decide over what each chip, by physical id, has; what cannot be read is no pass."""
    known = {one: found[0] for one, found in addresses.items() if isinstance(found, tuple)}
    evidence: Dict[str, Dict[str, str]] = {
        str(one): {"address": known.get(one, ""), "link": _told(links[one]), "net_health": _told(networks[one])}
        for one in addresses
    }
    twice = {address for address, count in Counter(known.values()).items() if count > 1}
    findings: List[Finding] = []
    for one, found in addresses.items():
        of, link, network = str(one), links[one], networks[one]
        set_address = (f"hccn_tool -i {one} -ip -s address ADDRESS netmask NETMASK",)
        if found is None:
            text = "Give each chip of every host an address of its own in one network; /etc/hccn.conf keeps it."
            remedy = Remedy(LINK_DOWN, text, set_address)
            findings.append(Finding(Verdict.FAIL, f"chip {one}: has no address", remedy, of))
        elif known.get(one) in twice:
            text = "Give one of them another address."
            said = f"chip {one}: another chip has its address {known[one]}, too"
            findings.append(Finding(Verdict.FAIL, said, Remedy(LINK_DOWN, text, set_address), of))
        if isinstance(link, PortLinks) and link.state != "UP":
            text = "Check cable, optical module and switch port: an instance over several hosts does not start without."
            remedy = Remedy(LINK_DOWN, text, (f"hccn_tool -i {one} -link -g",))
            findings.append(Finding(Verdict.FAIL, f"chip {one}: link {link.state}", remedy, of))
        if isinstance(network, str) and network not in SOUND:
            text = "The address that the chip is to detect does not answer: check it with `hccn_tool -netdetect -g`."
            remedy = Remedy(LINK_DOWN, text, (f"hccn_tool -i {one} -net_health -g",))
            findings.append(Finding(Verdict.FAIL, f"chip {one}: network {network}", remedy, of))
        for answer in (found, link, network):
            if isinstance(answer, ProbeError):
                remedy = Remedy(LINK_DOWN, "Ask hccn_tool by hand, as root.", (f"hccn_tool -i {one} -ip -g",))
                findings.append(Finding(Verdict.ERROR, f"chip {one}: {answer.message}", remedy, of))
    return conclude(findings, f"{len(addresses)} chip(s) with an address and a link each", evidence)


def _told(answer: Union[PortLinks, str, ProbeError]) -> str:
    if isinstance(answer, ProbeError):
        return answer.message
    return answer if isinstance(answer, str) else answer.state
