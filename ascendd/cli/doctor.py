"""`ascendd doctor`: run the preflight checks, print the table or JSON, exit by what they found."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from ascendd.errors import AscenddError, UsageError


def register(app: typer.Typer) -> None:
    """Add the verb to `app`."""
    app.command("doctor")(doctor)


def doctor(  # noqa: PLR0917 - typer reads one parameter per option
    instance: Annotated[Optional[str], typer.Option(help="Check for this instance: its file and its unit.")] = None,
    config: Annotated[Optional[Path], typer.Option(metavar="FILE", help="Check for an instance file anywhere.")] = None,
    model: Annotated[Optional[Path], typer.Option(metavar="PATH", help="Check this model folder.")] = None,
    device: Annotated[str, typer.Option(metavar="[auto|npu|cpu]", help="What kind of instance to check for.")] = "auto",
    deep: Annotated[bool, typer.Option(help="Also what takes minutes, such as checksums.")] = False,
    only: Annotated[Optional[list[str]], typer.Option(metavar="ID", help="Run this check; can be repeated.")] = None,
    host_root: Annotated[
        str, typer.Option(metavar="DIR", help="Check a fake host: a folder that holds .fake-host.")
    ] = "/",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """
    Check that this host can serve. Reads only, repairs nothing.

    Exit status: 0 all pass, 1 warnings, 2 failures, 3 something could not be checked.
    """
    from ascendd.host.fake_host import require_fake_host
    from ascendd.preflight.context import CheckContext, CheckRequest
    from ascendd.preflight.discover import find_checks, select
    from ascendd.preflight.report import exit_code, print_report, to_json
    from ascendd.preflight.runner import run_checks

    if device not in ("auto", "npu", "cpu"):
        raise typer.BadParameter(f"--device {device}: write auto, npu or cpu")
    named = [option for option, value in (("--instance", instance), ("--config", config), ("--model", model)) if value]
    if len(named) > 1:
        raise typer.BadParameter(f"{' and '.join(named)} exclude each other: name one")
    try:
        checks = select(find_checks(), only or [], deep)
        root = require_fake_host(host_root)
    except UsageError as error:
        raise typer.BadParameter(error.message) from error
    request = CheckRequest(
        device=device,
        instance=instance,
        config_json=_config_json(instance, config),
        model_path=None if model is None else str(model),
        deep=deep,
        root=root,
    )
    results = run_checks(checks, request)
    titles = {check.id: check.title for check in checks}
    target = CheckContext(request).target
    if as_json:
        print(json.dumps(to_json(results, target, titles), indent=2, ensure_ascii=False))
    else:
        print_report(results, target, titles, sys.stdout)
    return int(exit_code(results))


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
