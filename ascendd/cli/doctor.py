"""`ascendd doctor`: run the preflight checks, print the table or JSON, exit by what they found."""

from __future__ import annotations

import os
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
    from ascendd.preflight.context import CheckRequest
    from ascendd.preflight.discover import find_checks, select
    from ascendd.preflight.doctor import Doctor, DoctorOptions
    from ascendd.preflight.explain import explain as explained
    from ascendd.preflight.language import choose_language

    if device not in ("auto", "npu", "cpu"):
        raise typer.BadParameter(f"--device {device}: write auto, npu or cpu")
    try:
        language = choose_language(lang, os.environ)
        options = DoctorOptions(language, as_json, junit, bundle, watch, fix, yes)
        options.check()
        if explain is not None:
            print(explained(explain, find_checks(), language))
            return 0
    except UsageError as error:
        raise typer.BadParameter(error.message) from error
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
    try:
        return Doctor(checks, request, options).run()
    except UsageError as error:
        raise typer.BadParameter(error.message) from error


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
