"""Service user: the account of the unit exists, is in the driver's group, and may open what it needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

from ascendd.host.account import Account, group_id, read_account, refused
from ascendd.host.device_nodes import read_device_nodes
from ascendd.host.pci import find_pci_npus
from ascendd.host.version_files import read_driver
from ascendd.preflight.check import CheckResult, Finding, HostCheck, Remedy, Verdict, conclude, conclude_with
from ascendd.preflight.context import CheckContext

PERMISSION_MISSING = "ASD-H03"
# What the unit that is shipped runs as.
DEFAULT_USER = "ascendd"


@dataclass(frozen=True)
class Service:
    """The user that the service runs as (`account` None: no such user) and what it is refused."""

    user: str
    account: Optional[Account]
    # The driver's group, where there is a driver that names one that exists.
    driver_group: Optional[str]
    refused: Dict[str, str]
    is_installed: bool
    num_nodes: int = 0


class ServiceUser(HostCheck):
    """The service may use the chips and read its model."""

    id = "service-user"
    title = "Service user"
    requires = ("npu-presence",)

    def run(self, context: CheckContext) -> CheckResult:
        """Read the accounts, and open the device nodes and the model as the unit's one."""
        files, properties = context.files, context.service().properties
        user = properties.get("User") or (DEFAULT_USER if "LoadState" not in properties else "root")
        account = read_account(files, user, properties.get("SupplementaryGroups", "").split())
        nodes: Tuple[str, ...] = ()
        group = None
        if context.target.is_npu:
            group = read_driver(files).user_group
            found = read_device_nodes(files, {npu.family for npu in find_pci_npus(files)})
            in_use = context.logical_devices()
            names = [f"davinci{chip}" for chip in found.chips if in_use is None or chip in in_use]
            shared = [name for name in files.list_dir("/dev") if name in ("davinci_manager", "devmm_svm", "hisi_hdc")]
            nodes = tuple(f"/dev/{name}" for name in [*names, *shared])
        folders = [context.model_path] if context.model_path is not None and files.exists(context.model_path) else []
        return judge(
            Service(
                user=user,
                account=account,
                driver_group=group if group is not None and group_id(files, group) is not None else None,
                refused={} if account is None else refused(files, account, nodes, folders),
                is_installed=context.request.instance is not None,
                num_nodes=len(nodes),
            )
        )


def judge(service: Service) -> CheckResult:
    """Decide; a user that does not exist is only a fault where an instance is named: else nothing is installed yet."""
    account = service.account
    if account is None:
        if not service.is_installed:
            return CheckResult(Verdict.SKIPPED, f"no user {service.user}: ascendd is not installed on this host yet")
        text = "Make the user: systemd-sysusers, or install ascendd again; or name another one with User= in the unit."
        said = f"the unit runs as {service.user}, and this host has no such user"
        return conclude_with(_finding(Verdict.FAIL, said, text, ("systemd-sysusers",)), {"user": service.user})
    evidence = {
        "user": service.user,
        "groups": list(account.groups),
        "driver_group": service.driver_group,
        "refused": service.refused,
    }
    findings: List[Finding] = []
    group = service.driver_group
    outside = group is not None and group not in account.groups and account.uid != 0
    if service.refused:
        (path, reason), more = next(iter(service.refused.items())), len(service.refused) - 1
        others = f" and {more} more" if more else ""
        said = f"{service.user} cannot open {path}{others}: {reason}"
        text = f"Give {service.user} the right to it: chgrp and chmod, or DeviceAllow= of the unit for a device."
        commands: Tuple[str, ...] = (f"ls -l {path}", f"id {service.user}")
        if outside:
            said = f"{service.user} is not in the driver's group {group} and {said[len(service.user) + 1 :]}"
            text = f"Put {service.user} into the group {group}, then restart its instances."
            commands = (f"usermod -aG {group} {service.user}", f"id {service.user}")
        findings.append(_finding(Verdict.FAIL, said, text, commands))
    elif outside and service.num_nodes:
        text = f"Put {service.user} into the group {group}, as the vendor's tools expect."
        said = f"{service.user} is not in the driver's group {group}, though it may open the nodes"
        findings.append(_finding(Verdict.WARN, said, text, (f"usermod -aG {group} {service.user}",)))
    opened = f" may open {service.num_nodes} device nodes" if service.num_nodes else " exists"
    return conclude(findings, f"{service.user} ({', '.join(account.groups)}){opened}", evidence)


def _finding(verdict: Verdict, said: str, text: str, commands: Tuple[str, ...]) -> Finding:
    return Finding(verdict, said, Remedy(PERMISSION_MISSING, text, commands))
