"""`ascendd bench URL`: load any OpenAI-compatible server and report how fast it answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

_Rate = Annotated[
    Optional[float], typer.Option(metavar="N", help="Requests per second, whether or not earlier ones have ended.")
]


def register(app: typer.Typer) -> None:
    """Add the verb to `app`."""
    app.command("bench")(bench)


def bench(  # noqa: PLR0917 - typer reads one parameter per option
    url: Annotated[str, typer.Argument(metavar="URL", help="The server, such as http://127.0.0.1:8000.")],
    model: Annotated[
        str, typer.Option(metavar="NAME", help="The model; default: the first that the server lists.")
    ] = "",
    rate: _Rate = None,
    constant: Annotated[bool, typer.Option("--constant", help="With --rate: evenly, instead of at random.")] = False,
    concurrency: Annotated[
        int, typer.Option(metavar="N", min=1, max=10000, help="Without --rate: requests at once.")
    ] = 8,
    requests: Annotated[Optional[int], typer.Option(metavar="N", min=1, help="How many; default 100.")] = None,
    duration: Annotated[Optional[float], typer.Option(metavar="SECONDS", min=0.1, help="For how long to send.")] = None,
    lengths: Annotated[
        str, typer.Option(metavar="MIX", help="PROMPTxOUTPUT tokens with weights: 128x64:3,1024x256:1.")
    ] = "128x64",
    shared_prefix: Annotated[
        int, typer.Option(metavar="TOKENS", min=0, help="How much of each prompt is the same in all.")
    ] = 0,
    warm_up: Annotated[int, typer.Option(metavar="N", min=0, help="Requests before, that do not count.")] = 4,
    slo: Annotated[
        Optional[str], typer.Option(metavar="LIMITS", help="What counts as good: ttft=2s,tpot=50ms,e2e=30s.")
    ] = None,
    min_goodput: Annotated[
        Optional[float], typer.Option(metavar="SHARE", min=0, max=1, help="Exit 1 where fewer keep --slo.")
    ] = None,
    completions: Annotated[bool, typer.Option("--completions", help="Ask /v1/completions instead of chats.")] = False,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Have every answer its full length; servers of the vLLM family only.")
    ] = False,
    temperature: Annotated[float, typer.Option(metavar="T", min=0, max=2, help="Sampling temperature.")] = 0.0,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="Most time for one request.")] = 600.0,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed sends the same prompts.")] = 0,
    ca_file: Annotated[
        Optional[Path], typer.Option(metavar="FILE", help="Certificates to trust instead of the host's, as PEM.")
    ] = None,
    api_key_file: Annotated[Optional[Path], typer.Option(metavar="FILE", help="File with the API key.")] = None,
    api_key_env: Annotated[
        Optional[str], typer.Option(metavar="NAME", help="Environment variable with the API key.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of table and plot.")] = False,
    output: Annotated[Optional[Path], typer.Option(metavar="FILE", help="Write the JSON there as well.")] = None,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Print the table alone.")] = False,
) -> int:
    """
    Load an OpenAI-compatible server and report times, throughput and goodput.

    Exit status: 0 measured; 1 a request failed, or --min-goodput was missed; 70 the server did not answer at all.
    """
    import asyncio

    from ascendd import __version__
    from ascendd.bench.client import Target
    from ascendd.bench.load import parse_mix
    from ascendd.bench.plot import charts, table
    from ascendd.bench.report import Objective, summarize
    from ascendd.bench.run import LoadPlan, measure
    from ascendd.cli.ca_option import trust
    from ascendd.cli.key_option import read_key
    from ascendd.errors import UsageError

    if not url.startswith(("http://", "https://")):
        raise UsageError(f"{url!r} is not the address of a server; write http://HOST:PORT")
    if rate is not None and not 0 < rate <= 100_000:
        raise UsageError(f"--rate {rate:g} must be more than 0 and at most 100000 requests per second")
    if min_goodput is not None and slo is None:
        raise UsageError("--min-goodput needs --slo: what is good must be said first")
    objective = None if slo is None else Objective.parse(slo)
    plan = LoadPlan(
        parse_mix(lengths),
        rate,
        concurrency,
        100 if requests is None and duration is None else requests,
        duration,
        constant,
        warm_up,
        shared_prefix,
        seed,
    )
    key = read_key(api_key_file, api_key_env)
    target = Target(url, model, not completions, key, ignore_eos, temperature, timeout, trust(ca_file))
    live = sys.stderr.isatty()

    def progress(text: str) -> None:
        if live:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    measured = asyncio.run(measure(target, plan, progress))
    if live:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    report = {
        "ascendd": __version__,
        "url": url,
        "model": measured.model,
        "load": {
            "rate_per_s": rate,
            "arrivals": None if rate is None else "constant" if constant else "poisson",
            "concurrency": None if rate is not None else concurrency,
            "lengths": lengths,
            "shared_prefix_tokens": shared_prefix,
            "endpoint": "completions" if completions else "chat",
            "ignore_eos": ignore_eos,
            "temperature": temperature,
            "seed": seed,
        },
        **summarize(measured.outcomes, objective),
    }
    text = json.dumps(report, indent=2)
    if output is not None:
        output.write_text(text + "\n", encoding="utf-8")
    if as_json:
        print(text)
    else:
        print(f"{measured.model} at {url}")
        for line in table(report):
            print(line)
        if not no_plot:
            can_block = "utf" in (sys.stdout.encoding or "").lower()
            for line in charts(measured.outcomes, "█" if can_block else "#"):
                print(line)
    missed = min_goodput is not None and report["goodput"]["share"] < min_goodput
    return 1 if report["requests"]["failed"] or not measured.outcomes or missed else 0
