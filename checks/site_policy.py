"""Site policy: /etc/ascendd/policy.json, where there is one, can be read and only tightens what ships."""

from __future__ import annotations

from ascendd.errors import ProbeParseError
from ascendd.host.files import HostFiles
from ascendd.host.policy import SITE_FILE, read_policy
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude, conclude_with
from ascendd.preflight.context import CheckContext


class SitePolicy(NpuCheck):
    """The versions are judged by what the site wants."""

    id = "site-policy"
    title = "Site policy"

    def run(self, context: CheckContext) -> CheckResult:
        """Read the file, as every check of a version does."""
        return judge(context.files)


def judge(files: HostFiles) -> CheckResult:
    """Decide; a file that cannot be used stops every check of a version, since no guess is made."""
    try:
        policy = read_policy(files)
    except ProbeParseError as error:
        remedy = Remedy(error.code, error.remedy, (f"python3 -m json.tool {SITE_FILE}",))
        return conclude_with(Finding(Verdict.FAIL, error.message, remedy), {"site_file": SITE_FILE})
    evidence = {
        "site_file": policy.site_file,
        "cann_minimum": policy.cann_minimum,
        "firmware_minimum": dict(policy.firmware_minimum),
        "firmware_date_minimum": policy.firmware_date_minimum,
        "permits": [dict(permit) for permit in policy.permits],
    }
    if policy.site_file is None:
        return conclude([], f"no {SITE_FILE}: what ships decides (CANN {policy.cann_minimum} or later)", evidence)
    said = f"{policy.site_file}: CANN {policy.cann_minimum} or later, {len(policy.permits)} permitted pair(s)"
    return conclude([], said, evidence)
