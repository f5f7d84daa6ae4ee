"""`ascendd route --explain FILE`: which rule of the gateway would choose for a request, and why; nothing is sent."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ascendd.gateway.request_facts import RequestFacts
    from ascendd.gateway.rules import Choice, RuleBook


def register(app: typer.Typer) -> None:
    """Add the verb to `app`."""

    @app.command()
    def route(
        explain: Annotated[
            Path, typer.Option(metavar="FILE", help="The body of a request as JSON; - reads standard input.")
        ],
        config: Annotated[Path, typer.Option("--config", "-c", help="The gateway's file.")] = Path(
            "/etc/ascendd/gateway.yaml"
        ),
        key: Annotated[str, typer.Option(metavar="NAME", help="Name of the key that the request comes with.")] = "",
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> int:
        """
        Show what the gateway's rules make of a request, condition by condition.

        Exit status: 0 a model is chosen, 1 the request would be refused.
        """
        from ascendd.gateway.request_facts import read_facts
        from ascendd.gateway.rules import RuleBook
        from ascendd.gateway.schema import load_gateway, served_models

        loaded = load_gateway(config)
        book = RuleBook(loaded)
        facts = read_facts(_read(explain), key=key, prefix_chars=loaded.balance.sticky_prefix_chars)
        choice = book.choose(facts)
        instances = {
            model: [
                e.name for e in loaded.instances if model in served_models(e) and facts.modalities <= {*e.modalities}
            ]
            for model in choice.models
        }
        is_served = any(instances.values())
        if as_json:
            print(json.dumps(_view(book, facts, choice, instances), indent=2))
        else:
            for line in _lines(book, facts, choice, instances):
                print(line)
        return 0 if is_served else 1


def _read(path: Path) -> dict[str, Any]:
    from ascendd.errors import UsageError

    try:
        raw = json.loads(sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"--explain {path}: {error}") from None
    if not isinstance(raw, dict):
        raise UsageError(f"--explain {path} must hold a JSON object, the body of a request")
    return raw


def _view(book: RuleBook, facts: RequestFacts, choice: Choice, instances: dict[str, list[str]]) -> dict[str, Any]:
    return {
        "request": {
            "model": facts.model, "stream": facts.stream, "modality": sorted(facts.modalities), "key": facts.key,
            **facts.numbers,
        },
        "rules": [
            {
                "name": rule.name,
                "dry_run": rule.dry_run,
                "matches": all(holds for *_, holds in asked),
                "conditions": [
                    {"key": condition.key, "written": condition.written, "value": value, "holds": holds}
                    for condition, value, holds in asked
                ],
            }
            for rule, asked in book.explain(facts)
        ],
        "choice": {
            "rule": choice.rule, "models": list(choice.models), "refuse": choice.refuse, "instances": instances,
            "dry_run_matches": list(choice.shadowed),
        },
    }  # fmt: skip


def _lines(book: RuleBook, facts: RequestFacts, choice: Choice, instances: dict[str, list[str]]) -> Iterator[str]:
    for rule, asked in book.explain(facts):
        verdict = "matches" if all(holds for *_, holds in asked) else "does not match"
        chosen = ", chosen" if rule.name == choice.rule else ", dry run" if rule.dry_run else ""
        yield f"rule {rule.name}: {verdict}{chosen}"
        for condition, value, holds in asked:
            shown = "not given" if value is None or value == "" else value if isinstance(value, str) else f"{value:g}"
            yield f"  {'yes' if holds else 'no ':3} {condition.key} {condition.written}   (request: {shown})"
    if choice.refuse is not None:
        yield f"refused by rule {choice.rule}: {choice.refuse}"
    elif not choice.models:
        yield f"refused: no rule matches and no instance serves `{facts.model}`"
    else:
        order = "; then ".join(
            f"{model} at {' or '.join(names) or 'no instance'}" for model, names in instances.items()
        )
        yield f"goes to {order}"
        if not any(instances.values()):
            yield f"refused: no instance serves {', '.join(sorted(facts.modalities))}"
