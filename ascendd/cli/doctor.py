"""`ascendd doctor`: run the preflight checks, print the table or JSON, exit by what they found."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from ascendd.errors import AscenddError, UsageError


def register(app: typer.Typer) -> None:
    """Add the verb to `app`."""
    app.command("doctor")(doctor)


def doctor(  # noqa: PLR0917 - typer reads one parameter per option
    instance: Annotated[Optional[str], typer.Option(help="Check for this instance: its file and its unit.")] = None,
    as_service: Annotated[
        Optional[str],
        typer.Option(metavar="INSTANCE", help="As --instance, and compare this shell with its unit's environment."),
    ] = None,
    config: Annotated[Optional[Path], typer.Option(metavar="FILE", help="Check for an instance file anywhere.")] = None,
    model: Annotated[Optional[Path], typer.Option(metavar="PATH", help="Check this model folder.")] = None,
    device: Annotated[str, typer.Option(metavar="[auto|npu|cpu]", help="What kind of instance to check for.")] = "auto",
    deep: Annotated[bool, typer.Option(help="Also what takes minutes, such as checksums.")] = False,
    only: Annotated[
        Optional[list[str]], typer.Option(metavar="ID,...", help="Run these checks; can be repeated.")
    ] = None,
    skip: Annotated[Optional[list[str]], typer.Option(metavar="ID,...", help="Leave these checks out.")] = None,
    explain: Annotated[Optional[str], typer.Option(metavar="ID", help="Tell what a check does, and run none.")] = None,
    junit: Annotated[Optional[Path], typer.Option(metavar="FILE", help="Write JUnit XML there as well.")] = None,
    host_root: Annotated[
        str, typer.Option(metavar="DIR", help="Check a fake host: a folder that holds .fake-host.")
    ] = "/",
    watch: Annotated[
        Optional[float],
        typer.Option(metavar="SECONDS", min=1, help="Look again at what can change, this often, until Ctrl-C."),
    ] = None,
    fix: Annotated[bool, typer.Option(help="Show what could be put right by a setting; with --yes, do it.")] = False,
    yes: Annotated[bool, typer.Option(help="With --fix: run what it shows.")] = False,
    bundle: Annotated[
        Optional[Path], typer.Option(metavar="FILE", help="Write a support archive there, secrets masked.")
    ] = None,
    lang: Annotated[Optional[str], typer.Option(metavar="[zh|en]", help="Language; default: the locale's.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """
    Check that this host can serve. Reads only; --fix --yes alone changes something.

    Exit status: 0 all pass, 1 warnings, 2 failures, 3 something could not be checked.
    """
    from ascendd.host.fake_host import require_fake_host
    from ascendd.preflight.context import CheckContext, CheckRequest
    from ascendd.preflight.discover import find_checks, select
    from ascendd.preflight.junit import to_junit
    from ascendd.preflight.language import choose_language
    from ascendd.preflight.report import exit_code, print_report, to_json
    from ascendd.preflight.runner import run_checks

    if device not in ("auto", "npu", "cpu"):
        raise typer.BadParameter(f"--device {device}: write auto, npu or cpu")
    if watch is not None and as_json:
        raise typer.BadParameter("--watch and --json exclude each other: run --json as often as you need it")
    if yes and not fix:
        raise typer.BadParameter("--yes says that --fix may run what it shows; write both")
    if fix and as_json:
        raise typer.BadParameter("--fix and --json exclude each other: a fix is shown to a person before it runs")
    try:
        language = choose_language(lang, os.environ)
    except ValueError as error:
        raise typer.BadParameter(f"--lang {lang}: write zh or en") from error
    if explain is not None:
        return _explain(explain)
    if as_service is not None:
        if instance not in (None, as_service):
            raise typer.BadParameter("--instance and --as-service name two instances: name one")
        instance = as_service
    named = [option for option, value in (("--instance", instance), ("--config", config), ("--model", model)) if value]
    if len(named) > 1:
        raise typer.BadParameter(f"{' and '.join(named)} exclude each other: name one")
    try:
        checks = select(find_checks(), only or [], deep, skip or [])
        root = require_fake_host(host_root)
    except UsageError as error:
        raise typer.BadParameter(error.message) from error
    request = CheckRequest(
        device=device,
        instance=instance,
        config_json=_config_json(instance, config),
        model_path=None if model is None else str(model),
        deep=deep,
        as_service=as_service is not None,
        root=root,
    )
    results = run_checks(checks, request)
    titles = {check.id: check.title for check in checks}
    target = CheckContext(request).target
    if junit is not None:
        _write_junit(junit, to_junit(results, titles))
    if as_json:
        print(json.dumps(to_json(results, target, titles), indent=2, ensure_ascii=False))
    else:
        print_report(results, target, titles, sys.stdout, language)
    if bundle is not None:
        _bundle(bundle, to_json(results, target, titles), request)
    if fix:
        results = _fix(checks, request, results, apply_them=yes)
    if watch is not None:
        results = _watch(checks, request, results, titles, watch)
    return int(exit_code(results))


def _watch(checks: list[Any], request: Any, results: list[Any], titles: dict[str, str], every_s: float) -> list[Any]:
    """Run the live checks again and again; print each verdict that changed. Return what was known at Ctrl-C."""
    from ascendd.preflight.runner import run_checks
    from ascendd.preflight.watch import changes, merged

    live = [check for check in checks if check.live]
    print(f"\nlooking again every {every_s:g} s at: {', '.join(check.id for check in live) or 'nothing'}", flush=True)
    try:
        while live:
            time.sleep(every_s)
            again = run_checks(live, request)
            lines = changes(results, again, titles)
            results = merged(results, again)  # before it is told: whoever reads the line may interrupt at once
            for line in lines:
                print(f"{time.strftime('%H:%M:%S')}  {line}", flush=True)
    except KeyboardInterrupt:
        print()
    return results


def _fix(checks: list[Any], request: Any, results: list[Any], *, apply_them: bool) -> list[Any]:
    """Show every fix, run each where it may be, look again at what was fixed; return what is known then."""
    from ascendd.preflight.context import CheckContext
    from ascendd.preflight.fix import apply, fixes_for
    from ascendd.preflight.runner import run_checks
    from ascendd.preflight.watch import changes, merged

    fixes = fixes_for(results)
    if not fixes:
        print("\nNothing here can be put right by a setting; see what to do above.")
        return results
    context = CheckContext(request)
    print("\nFixes" if apply_them else "\nFixes, none of which was run; --fix --yes runs them")
    for fix in fixes:
        print(f"{fix.check_id}: {fix.command}\n    holds: {fix.holds}\n    undo: {fix.undo or 'nothing to take back'}")
        if apply_them:
            outcome = apply(fix, context.run, context.environ)
            print(f"    {'done' if outcome.problem is None else 'failed: ' + outcome.problem}", flush=True)
    if not apply_them:
        return results
    again = run_checks([check for check in checks if check.id in {fix.check_id for fix in fixes}], request)
    for line in changes(results, again, {check.id: check.title for check in checks}):
        print(line)
    return merged(results, again)


def _bundle(target: Path, report: dict[str, Any], request: Any) -> None:
    from ascendd.preflight.context import CheckContext
    from ascendd.preflight.support_archive import write_archive

    try:
        names = write_archive(target, report, CheckContext(request))
    except UsageError as error:
        raise typer.BadParameter(error.message) from error
    # Standard output may be the JSON report.
    print(f"{target}: {len(names)} files, secrets masked; look through it before it leaves", file=sys.stderr)


def _explain(check_id: str) -> int:
    from ascendd.preflight.discover import find_checks, select
    from ascendd.preflight.explain import explain

    try:
        (check,) = select(find_checks(), [check_id], deep=True)
    except UsageError as error:
        raise typer.BadParameter(error.message.replace("--only", "--explain", 1)) from error
    print(explain(check))
    return 0


def _write_junit(path: Path, text: str) -> None:
    from ascendd.errors import PermissionMissing

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PermissionMissing(
            f"--junit {path} cannot be written: {error.strerror}", remedy="Name a file in a folder that is there."
        ) from error


def _config_json(instance: Optional[str], config: Optional[Path]) -> Optional[str]:
    """Return the instance's configuration as JSON, with every path in it absolute."""
    if instance is None and config is None:
        return None
    import msgspec

    from ascendd.config.load import INSTANCES_DIR, load_file

    if instance is not None:
        if "/" in instance or instance.startswith("."):
            raise typer.BadParameter(f"--instance {instance}: write the name only; --config takes a path")
        path = INSTANCES_DIR / f"{instance}.yaml"
    else:
        assert config is not None
        path = config
    try:
        loaded: Any = load_file(path)
    except AscenddError as error:
        error.remedy = f"{error.remedy} `ascendd doctor` without --instance checks the host alone."
        raise
    return msgspec.json.encode(loaded).decode()
