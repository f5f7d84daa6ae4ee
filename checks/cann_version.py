"""CANN version: not below the policy's H-version."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Sequence

from ascendd.host.cann_version import CannVersion as Version
from ascendd.host.cann_version import parse_version
from ascendd.host.policy import VersionPolicy, read_policy
from ascendd.host.version_files import CannFiles, cann_roots, read_cann
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude, conclude_with
from ascendd.preflight.context import CheckContext

PREFLIGHT = "ASD-P01"
_UPGRADE = (
    "Install a newer CANN toolkit and the ops (kernels) package of the same version; "
    "`python3 -m installer plan` shows the steps."
)


class CannVersion(NpuCheck):
    """The CANN toolkit that the service uses is one that serves for weeks."""

    id = "cann-version"
    title = "CANN version"
    requires = ("site-policy",)

    def run(self, context: CheckContext) -> CheckResult:
        """Read the toolkit that the service's environment names, else the usual places."""
        environ = context.service().variables
        policy = read_policy(context.files)
        return judge(read_cann(context.files, environ), policy, cann_roots(context.files, environ))


def judge(toolkits: Sequence[CannFiles], policy: VersionPolicy, looked_in: Sequence[str] = ()) -> CheckResult:
    """Decide over the first of `toolkits`, which is the one in use."""
    evidence: Dict[str, Any] = {
        "minimum": policy.cann_minimum,
        "site_policy": policy.site_file,
        "found": {toolkit.root: toolkit.version for toolkit in toolkits},
    }
    if not toolkits:
        said = f"no CANN toolkit found in {', '.join(looked_in[:4])}"
        text = "Install the CANN toolkit, or set ASCEND_HOME_PATH in the unit when it lies elsewhere."
        return conclude_with(Finding(Verdict.FAIL, said, Remedy(PREFLIGHT, text)), evidence)
    cann = toolkits[0]
    evidence.update(
        version=cann.version, root=cann.root, inner_version=cann.inner_version, ops_for=list(cann.ops_chips)
    )
    version = effective_version(cann)
    minimum = parse_version(policy.cann_minimum)
    assert minimum is not None
    if version is None:
        said = f"{cann.version} has no known form, so it was not compared with {minimum}"
        text = "Compare it with the vendor's release notes."
        return conclude_with(Finding(Verdict.WARN, said, Remedy(PREFLIGHT, text)), evidence)
    if not version.is_ranked and (version.major, version.minor) == (minimum.major, minimum.minor):
        said = f"{version} is an internal build that cannot be ranked against {minimum}"
        return conclude_with(Finding(Verdict.WARN, said, Remedy(PREFLIGHT, _UPGRADE)), evidence)
    if version < minimum:
        said = f"{version} at {cann.root}: {_reason(version, minimum, policy.cann_refused_because)}"
        return conclude_with(Finding(Verdict.FAIL, said, Remedy(PREFLIGHT, _UPGRADE)), evidence)
    return conclude([], f"{version} at {cann.root} (policy: {minimum} or later)", evidence)


def effective_version(cann: CannFiles) -> Optional[Version]:
    """Return the version; a hotfix that only the inner version carries (`...H100`) is added to it."""
    version = parse_version(cann.version)
    if version is not None and version.hotfix is None and cann.inner_version:
        _, separator, hotfix = cann.inner_version.rpartition("H")
        if separator and hotfix.isdigit():
            return parse_version(f"{cann.version}.H{hotfix}") or version
    return version


def _reason(version: Version, minimum: Version, because: Mapping[str, str]) -> str:
    numbers = (f"{version.major}.{version.minor}.{version.patch}", str(version.major))
    known = next((because[number] for number in numbers if number in because and not _is_early(version)), None)
    return known or f"older than {minimum}, the policy's minimum"


def _is_early(version: Version) -> bool:
    """Tell a pre-release of 7.0.0 from 7.0.0 without its hotfix; of 6.x every release leaks."""
    return version.major >= 7 and any(word in version.text.lower() for word in ("rc", "alpha", "beta"))
