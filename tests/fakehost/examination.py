"""Run every check on a fake host in this process: the same checks in the same order, without a process for each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from fake_machine import FakeMachine

from ascendd.errors import AscenddError, ProbeUnavailable
from ascendd.host.acl import AclOutcome
from ascendd.host.command import CommandOutcome
from ascendd.host.files import HostFiles
from ascendd.preflight.check import CheckResult, Remedy, Tier, Verdict
from ascendd.preflight.context import CheckContext, CheckRequest
from ascendd.preflight.discover import find_checks, in_order

SOUND = AclOutcome("/fake/libascendcl.so", 8, "Ascend910B3", 58 << 30, 61 << 30)


Watch = Callable[[CheckContext, str], None]


def examine(
    machine: FakeMachine, *, only: Collection[str] | None = None, watch: Watch | None = None, **request: object
) -> dict[str, CheckResult]:
    """
    Return the results by check id. ACL is only really called where the machine has a fault for it.

    `only` are the checks to run, all without it; `watch` may change each context before its check runs.
    """
    made = CheckRequest(root=str(machine.root), **request)
    results: dict[str, CheckResult] = {}
    for cls in in_order([check for check in find_checks() if check.tier is Tier.BASIC]):
        if only is not None and cls.id not in only:
            continue
        context = CheckContext(made)
        context.run = replayer(machine)
        if not {"FAKE_ACL_FAULT", "FAKE_ACL_COUNT_FAULT"} & set(machine.environ):
            count = int(machine.environ.get("FAKE_ACL_COUNT", "8"))
            context.acl_count = answering(AclOutcome(SOUND.library, count))
            context.acl_round_trip = answering(SOUND)
        check = cls()
        reason = check.skip_reason(context.target)
        unmet = [one for one in check.requires if one in results and is_unmet(results[one])]
        if reason is not None or unmet:
            results[check.id] = CheckResult(Verdict.SKIPPED, reason or "", {"unmet": unmet} if unmet else {})
            continue
        if watch is not None:
            watch(context, check.id)
        try:
            results[check.id] = check.run(context)
        except AscenddError as error:
            results[check.id] = CheckResult(Verdict.ERROR, error.message, {}, Remedy(error.code, error.remedy))
    return results


def is_unmet(result: CheckResult) -> bool:
    """Whether what requires this result is skipped."""
    return result.verdict in (Verdict.FAIL, Verdict.ERROR) or bool(result.evidence.get("unmet"))


def answering(outcome: AclOutcome) -> Callable[..., AclOutcome]:
    """Return a probe that always answers so."""

    def answer(files: HostFiles, environ: Mapping[str, str], *rest: object) -> AclOutcome:
        return outcome

    return answer


def replayer(machine: FakeMachine) -> Callable[[Sequence[str], float, Mapping[str, str]], CommandOutcome]:
    """Return what replay.sh does, without a shell for each call; tools that are not installed are not there."""
    answers = machine.root / ".answers"

    def run(argv: Sequence[str], timeout_s: float, environ: Mapping[str, str]) -> CommandOutcome:
        name = Path(argv[0]).name
        if not argv[0].startswith(str(machine.root)) and not list(machine.root.glob(f"usr/*/bin/{name}")):
            raise ProbeUnavailable(f"{name} is not on this host")
        answer = answers / name / (" ".join(argv[1:]) or "_")
        if not answer.exists():
            return CommandOutcome(tuple(argv), 255, "Command or option is not found.\n", "", 0.0)
        status, stderr = Path(f"{answer}.status"), Path(f"{answer}.stderr")
        return CommandOutcome(
            tuple(argv),
            int(status.read_text()) if status.exists() else 0,
            answer.read_text(errors="replace"),
            stderr.read_text() if stderr.exists() else "",
            0.0,
        )

    return run
