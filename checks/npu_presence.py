"""Presence: the chips on the PCI bus, in /dev, in npu-smi and in ACL must be the same number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

from ascendd.errors import ProbeError, ProbeParseError
from ascendd.host.device_nodes import DeviceNodes, read_device_nodes
from ascendd.host.pci import find_pci_npus
from ascendd.host.version_files import read_driver
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude
from ascendd.preflight.chips import read_report
from ascendd.preflight.context import CheckContext

DEVICE_UNAVAILABLE, PERMISSION_MISSING, PROBE_PARSE = "ASD-D02", "ASD-H03", "ASD-P04"
# The driver's return code for `no working device`, whatever the reason.
INNER_ERROR = -8005


@dataclass(frozen=True)
class Presence:
    """The four counts (None: not known, with the reason in `notes`) and what else decides."""

    pci: int
    nodes: DeviceNodes
    npu_smi: Optional[int]
    acl: Optional[int]
    is_container: bool
    driver_version: Optional[str] = None
    user_group: Optional[str] = None
    npu_smi_failure: Optional[str] = None
    npu_smi_remedy: Optional[str] = None
    dcmi_code: Optional[int] = None
    # What npu-smi printed cannot be read: then its count is not known, which is no fault of the chips.
    unreadable: Optional[str] = None
    notes: Tuple[str, ...] = ()

    @property
    def counts(self) -> Dict[str, Optional[int]]:
        """The four numbers, by where they come from."""
        return {"pci": self.pci, "nodes": len(self.nodes.chips), "npu_smi": self.npu_smi, "acl": self.acl}

    @property
    def spoken_counts(self) -> str:
        """The four numbers in one line."""
        names = {"pci": "PCI", "nodes": "/dev", "npu_smi": "npu-smi", "acl": "ACL"}
        return ", ".join(f"{names[key]} {'unknown' if n is None else n}" for key, n in self.counts.items())


class NpuPresence(NpuCheck):
    """The OS sees the NPUs and every layer sees the same ones."""

    id = "npu-presence"
    title = "NPU presence"
    timeout_s = 90.0

    def run(self, context: CheckContext) -> CheckResult:
        """Count chips in sysfs, /dev, npu-smi and ACL."""
        return judge(measure(context))


def measure(context: CheckContext) -> Presence:
    """Take the four counts; none of them can spoil another."""
    npus = find_pci_npus(context.files)
    driver = read_driver(context.files)
    failure: Optional[ProbeError] = None
    npu_smi: Optional[int] = None
    notes: List[str] = []
    try:
        report = read_report(context)
        npu_smi = len(report.chips)
        notes += [f"npu-smi: {note}" for note in report.notes]
    except ProbeError as error:
        failure = error
    unreadable = failure.message if isinstance(failure, ProbeParseError) else None
    acl: Optional[int] = None
    try:
        outcome = context.acl_count(context.files, context.service().variables, 30.0 * context.request.patience)
        acl = outcome.count
        if outcome.failed_step is not None:
            notes.append(f"ACL: {outcome.failed_step} returned {outcome.code} {outcome.text}".rstrip())
    except ProbeError as error:
        notes.append(f"ACL: {error.message}")
    return Presence(
        pci=sum(npu.num_chips for npu in npus),
        nodes=read_device_nodes(context.files, {npu.family for npu in npus}, context.logical_devices()),
        npu_smi=npu_smi,
        acl=acl,
        is_container=context.is_container,
        driver_version=driver.version,
        user_group=driver.user_group,
        npu_smi_failure=None if failure is None else failure.message,
        npu_smi_remedy=None if failure is None else failure.remedy,
        dcmi_code=None if failure is None else failure.facts.get("dcmi_code"),
        unreadable=unreadable,
        notes=tuple(notes),
    )


def judge(presence: Presence) -> CheckResult:
    """Decide; the first broken layer, from the bus upwards, gives the remedy."""
    evidence = {
        "counts": presence.counts,
        "driver_version": presence.driver_version,
        "missing_nodes": [*presence.nodes.missing_required, *presence.nodes.missing_expected],
        "not_openable": dict(presence.nodes.not_openable),
        "npu_smi_failure": presence.npu_smi_failure,
        "is_container": presence.is_container,
        "notes": list(presence.notes),
    }
    broken = _broken_layer(presence)
    findings = [broken] if broken is not None else []
    if presence.nodes.missing_expected:
        missing = ", ".join("/dev/" + node for node in presence.nodes.missing_expected)
        remedy = Remedy(
            DEVICE_UNAVAILABLE, "Load the whole driver, or map these nodes into the container.", ("ls -l /dev",)
        )
        findings.append(Finding(Verdict.WARN, f"{missing} not there, which most workloads need", remedy))
    for note in presence.notes:
        if "WARNING" in note:
            text = "Install the driver package again, then reboot."
            findings.append(Finding(Verdict.WARN, note, Remedy(DEVICE_UNAVAILABLE, text)))
    return conclude(findings, f"{presence.npu_smi} chip(s) in every layer ({presence.spoken_counts})", evidence)


def _broken_layer(presence: Presence) -> Optional[Finding]:
    nodes, counts = presence.nodes, presence.spoken_counts
    if not (presence.pci or nodes.chips or presence.npu_smi or presence.acl):
        installed = (
            f"a driver ({presence.driver_version}) is installed"
            if presence.driver_version
            else "no driver is installed"
        )
        return _fail(
            f"no NPU found ({counts}); {installed}",
            "Check that the card is seated, powered and shown by the BMC; a card that fell off the bus comes back "
            "after a power cycle. To serve on the CPU, set engine.device: cpu.",
            ("lspci -n -d 19e5:", "dmesg | grep -iE 'pcie|davinci'"),
        )
    if presence.pci and not nodes.chips:
        text = "Install the driver (`python3 -m installer plan`); if it is installed, reboot: its module is not loaded."
        if presence.is_container:
            text = "Map /dev/davinci* into the container."
        return _fail(
            f"the bus has NPUs, /dev has none ({counts})",
            text,
            ("ls -l /dev/davinci*", "lsmod | grep -iE 'drv_|asdrv'"),
        )
    if nodes.missing_required:
        missing = ", ".join("/dev/" + node for node in nodes.missing_required)
        return _fail(
            f"{missing} not there ({counts})", "Reload the driver or reboot; in a container, map it.", ("ls -l /dev",)
        )
    if nodes.not_openable:
        (node, reason), more = nodes.not_openable[0], len(nodes.not_openable) - 1
        group = presence.user_group or "HwHiAiUser"
        others = f" and {more} more" if more else ""
        text = f"Give the service user the group {group} (SupplementaryGroups= of the unit); check DeviceAllow=."
        commands = (f"ls -l /dev/{node}", f"usermod -aG {group} ascendd")
        return Finding(
            Verdict.FAIL, f"/dev/{node}{others} cannot be opened: {reason}", Remedy(PERMISSION_MISSING, text, commands)
        )
    if presence.unreadable is not None:
        text = presence.npu_smi_remedy or "Run `npu-smi info` by hand and look."
        said = f"what npu-smi prints cannot be read: {presence.unreadable} ({counts})"
        return Finding(Verdict.ERROR, said, Remedy(PROBE_PARSE, text, ("npu-smi info",)))
    if presence.npu_smi is None:
        text = presence.npu_smi_remedy or ""
        if presence.dcmi_code == INNER_ERROR:
            # Bus, nodes and rights are in order here, so what is left is a driver that waits for its reboot.
            text = "The nodes can be opened, so the driver most likely waits for a reboot after an upgrade: reboot."
            if presence.driver_version is None:
                text = "The driver's version.info is missing: install the driver again, then reboot."
        return _fail(
            f"npu-smi gives no answer: {presence.npu_smi_failure} ({counts})",
            text,
            ("npu-smi info", "tail -50 /var/log/ascend_seclog/ascend_install.log"),
        )
    seen = [count for count in (len(nodes.chips), presence.npu_smi, presence.acl) if count is not None]
    if presence.pci and not presence.is_container:
        seen.append(presence.pci)
    if len(set(seen)) > 1 or (presence.is_container and presence.pci and max(seen) > presence.pci):
        return _fail(
            f"the counts disagree: {counts}",
            "A chip that one layer shows and another does not has failed or is held by another container: look for it "
            "in npu-smi and dmesg, then reset it or power-cycle the host.",
            ("npu-smi info", "lspci -n -d 19e5:", "ls /dev/davinci*", "cat /proc/uda/namespace_node"),
        )
    return None


def _fail(text: str, remedy: str, commands: Tuple[str, ...]) -> Finding:
    return Finding(Verdict.FAIL, text, Remedy(DEVICE_UNAVAILABLE, remedy, commands))
