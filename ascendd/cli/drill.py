"""`ascendd drill KIND INSTANCE`: break a running instance on order, and tell what was noticed, and when it was over."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

if TYPE_CHECKING:
    from ascendd.cli.drill_probe import DrillProbe

_KINDS = "oom, hang, kill-rank, kill-engine, kill-api, leak, slow-disk, full-disk or device-lost"
_POLL_S = 0.1


def register(app: typer.Typer) -> None:
    """Add the verb to `app`."""

    @app.command()
    def drill(
        kind: Annotated[str, typer.Argument(metavar="KIND", help=f"What happens: {_KINDS}.")],
        instance: Annotated[str, typer.Argument(metavar="INSTANCE", help="Name; it needs recovery.drills: true.")],
        *,
        seconds: Annotated[float, typer.Option("--seconds", help="How long a leak or a bad disk lasts.")] = 20.0,
        timeout_s: Annotated[float, typer.Option("--timeout", help="Seconds within which it must be over.")] = 300.0,
        api_key_file: Annotated[
            Optional[Path], typer.Option(metavar="FILE", help="File with an API key, where the instance has keys.")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ) -> None:
        """Break a running instance on purpose; exit status 70 where it was not noticed or service did not come back."""
        from ascendd.cli.drill_probe import DrillProbe
        from ascendd.cli.key_option import read_key
        from ascendd.errors import EngineFault

        status = _status(instance)
        with DrillProbe(status["address"], status["model"], read_key(api_key_file, None)) as probe:
            _wait_answered(probe)
            report = run_drill(instance, kind, seconds, timeout_s, probe)
        print(json.dumps(report) if as_json else render(report))
        if report["detected_s"] is None or report["back_s"] is None:
            missing = "noticed" if report["detected_s"] is None else "over"
            raise EngineFault(
                f"the drill {kind} was not {missing} within {timeout_s:g} s",
                remedy=f"See `ascendd status {instance}` and `ascendd report {instance} --last`.",
            )


def run_drill(instance: str, kind: str, seconds: float, timeout_s: float, probe: DrillProbe) -> dict[str, Any]:
    """Begin the drill and watch until it is over; times are seconds since it began, None where they did not come."""
    from ascendd.cli.control_client import ask
    from ascendd.cli.drill_probe import seen

    before = _status(instance)
    began_s = time.monotonic()
    begun = ask(instance, {"verb": "drill", "kind": kind, "seconds": seconds})
    detected_s = back_s = None
    detected = ""
    while (now_s := time.monotonic() - began_s) < timeout_s:
        status = _status(instance)
        if detected_s is None:
            detected = noticed(before, status)
            if detected:
                detected_s = now_s
        elif _is_over(before, status) and (answer := probe.first_finished_after(began_s + detected_s)) is not None:
            back_s = max(now_s, answer.ended_s - began_s)
            break
        time.sleep(_POLL_S)
    return {
        **begun,
        "instance": instance,
        "detected": detected,
        "detected_s": None if detected_s is None else round(detected_s, 2),
        "back_s": None if back_s is None else round(back_s, 2),
        "load_s": next((row["load_s"] for row in before["processes"] if row["role"] == "engine"), None),
        "clients": seen(probe.ends, began_s),
    }


def noticed(before: dict[str, Any], status: dict[str, Any]) -> str:
    """Return what the instance has noticed since `before`, empty while it has nothing."""
    incident = status["last_incident"]
    if incident is not None and incident != before["last_incident"]:
        return str(incident["reason"])
    if status["phase"] not in ("serving", "starting"):
        return f"{status['phase']}: {status['text']}"
    if status["degraded"] != before["degraded"]:
        return f"degraded: {status['degraded']}"
    steps = status["load"]["out_of_memory_steps"] - before["load"]["out_of_memory_steps"]
    return f"{steps} step without memory, tried again with half its tokens" if steps > 0 else ""


def _is_over(before: dict[str, Any], status: dict[str, Any]) -> bool:
    is_whole = all(row["state"] == "ready" for row in status["processes"])
    # A smaller cache stays after a shortage of a group: that is its cure, and degraded for good.
    is_as_before = status["degraded"] in ("", before["degraded"]) or "KV cache" in status["degraded"]
    return is_whole and status["phase"] == "serving" and is_as_before


def _status(instance: str) -> dict[str, Any]:
    from ascendd.cli.control_client import ask

    return ask(instance, {"verb": "status"})


def _wait_answered(probe: DrillProbe) -> None:
    """Return once both clients had an answer. Raises EngineFault where they get none: nothing to break then."""
    from ascendd.errors import EngineFault

    until_s = time.monotonic() + 60.0
    while time.monotonic() < until_s:
        hows = [end.how for end in probe.ends]
        if hows.count("finished") >= 2:
            return
        if len(hows) >= 4:
            break
        time.sleep(_POLL_S)
    raise EngineFault(
        f"the instance does not answer before the drill: {', '.join(hows) or 'no answer within 60 s'}",
        remedy="Give --api-key-file where it has keys; else see `ascendd status`.",
    )


def render(report: dict[str, Any]) -> str:
    """Return the lines that people read."""
    clients = report["clients"]
    counts = ", ".join(f"{count} {how}" for how, count in clients["requests"].items()) or "no request ended"

    def after(value: float | None) -> str:
        return "never" if value is None else f"after {value:.1f} s"

    return "\n".join(
        [
            f"drill     {report['kind']} of {report['instance']}: {report['role']}, pid {report['pid']}",
            f"expected  {report['expected']}",
            f"detected  {after(report['detected_s'])}: {report['detected'] or 'nothing'}",
            f"clients   {counts}; the longest wait {clients['longest_wait_s']:.1f} s, the longest time without an "
            f"answer {clients['longest_pause_s']:.1f} s",
            f"back      {after(report['back_s'])}"
            + ("" if report["load_s"] is None else f"; the engine's last load took {report['load_s']:.1f} s"),
        ]
    )
