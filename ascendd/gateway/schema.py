"""GatewayConfig: what a human wrote in /etc/ascendd/gateway.yaml, read and checked; nothing is asked of any server."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from ascendd.config.load import invalid, shape_problems
from ascendd.config.quantity import parse_bytes
from ascendd.config.schema import Bytes, Count, ListenSection, LogSection, MetricsSection, Section, Size, Timeout
from ascendd.config.validate import ConfigProblem, address_problems
from ascendd.config.yaml_text import parse_yaml
from ascendd.errors import ConfigFileMissing
from ascendd.gateway.condition import parse_condition

GATEWAY_FILE = Path("/etc/ascendd/gateway.yaml")
AUTO = "auto"
_UNIT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9:_.@\\-]{0,200}")
# Keys of `when` that compare a number.
COMPARED = (
    "temperature", "top_p", "max_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "prompt_tokens",
)  # fmt: skip
Modality = Literal["text", "image", "audio", "video"]
Names = str | list[str]
Comparison = str | int | float


class GatewayListen(ListenSection, frozen=True):
    """The address that clients use. Keys are made by `ascendd key add`; rules know a key by its name."""

    port: int = 8080
    max_body_bytes: Bytes = "8MiB"


class GatewayMetrics(MetricsSection, frozen=True):
    """The address of the gateway's own /metrics."""

    port: int = 9476


class OnDemandSection(Section, frozen=True):
    """An instance that systemd starts when it is asked for, and stops when nobody asks."""

    # Such as ascendd@phi-3-mini.
    unit: str
    # Without a request for so long it is stopped; without it never, but for the memory of another.
    idle_s: Timeout | None = None
    # About how long a start takes: what Retry-After says.
    load_s: Timeout = 60.0
    # What it takes, as `ascendd plan` says; needed with on_demand_memory.
    memory: Bytes | None = None


class InstanceEntry(Section, frozen=True):
    """One server behind the gateway: an instance of ascendd, or any other that speaks the OpenAI API."""

    name: str
    # http://HOST:PORT, without /v1.
    url: str
    # Names that it serves, adapters too; default: its own name.
    models: tuple[str, ...] = ()
    modalities: tuple[Modality, ...] = ("text",)
    # File whose first key the gateway sends; clients' keys are never passed on.
    api_key_file: str | None = None
    # Certificates that vouch for an https:// url, as PEM; default: the authorities of the host.
    ca_file: str | None = None
    # Prompt tokens plus max_tokens of its open requests, by estimate; at that many it counts as full.
    max_outstanding_tokens: Size | None = None
    ready_path: str = "/readyz"
    on_demand: OnDemandSection | None = None


class When(Section, frozen=True):
    """
    What a request must be; all that is written must hold. A field that the request does not give matches nothing.

    Numbers are compared: `0.5`, `">= 0.8"`, `"> 0, < 128"`.
    """

    # Names with * and ?; without it the rule is for `auto` alone.
    model: Names | None = None
    temperature: Comparison | None = None
    top_p: Comparison | None = None
    max_tokens: Comparison | None = None
    presence_penalty: Comparison | None = None
    frequency_penalty: Comparison | None = None
    repetition_penalty: Comparison | None = None
    # By estimate: the gateway has no tokenizer and takes four bytes for a token.
    prompt_tokens: Comparison | None = None
    stream: bool | None = None
    modality: Modality | None = None
    # Names of keys in listen.api_key_file.
    key: Names | None = None


class RuleEntry(Section, frozen=True):
    """One rule: the models to try in this order, or why such requests are refused."""

    name: str
    when: When = When()
    to: Names | None = None
    refuse: str | None = None
    # Counted and logged, and the next rules decide.
    dry_run: bool = False


class BalanceSection(Section, frozen=True):
    """How one of several instances of a model is chosen."""

    # Characters at the start of a prompt; equal ones go to one instance, whose prefix cache knows them. 0: none do.
    sticky_prefix_chars: Count = 1024
    # How many more outstanding tokens than the least loaded instance the sticky one may have.
    sticky_slack_tokens: Count = 8192


class ProbeSection(Section, frozen=True):
    """How instances are watched."""

    interval_s: Timeout = 2.0
    timeout_s: Timeout = 2.0
    # So many probes in a row without an answer in time take an instance out; a refused connection or an answer that
    # is not 200 does at once.
    fall: Count = 3


class GatewayConfig(Section, frozen=True):
    """The gateway: /etc/ascendd/gateway.yaml."""

    instances: tuple[InstanceEntry, ...]
    rules: tuple[RuleEntry, ...] = ()
    listen: GatewayListen = GatewayListen()
    metrics: GatewayMetrics = GatewayMetrics()
    balance: BalanceSection = BalanceSection()
    probe: ProbeSection = ProbeSection()
    # What all instances that are loaded on demand may take together; default: no bound.
    on_demand_memory: Bytes | None = None
    # Most seconds between two pieces of an instance's answer, the first included.
    upstream_timeout_s: Timeout = 600.0
    log: LogSection = LogSection()


def as_names(value: Names | None) -> list[str]:
    """Return one name or several as a list."""
    return [] if value is None else [value] if isinstance(value, str) else value


def served_models(entry: InstanceEntry) -> list[str]:
    """Return the names that `entry` serves."""
    return [*entry.models] or [entry.name]


def load_gateway(path: Path = GATEWAY_FILE) -> GatewayConfig:
    """Read and check the file. Raises ConfigFileMissing, ConfigSyntaxError or ConfigInvalid with every problem."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigFileMissing(f"{path} cannot be read: {error}", path=str(path)) from error
    return load_text(text, str(path))


def load_text(text: str, origin: str = "configuration") -> GatewayConfig:
    """Check YAML `text`; `origin` names it in messages."""
    raw = parse_yaml(text, origin)
    raw = {} if raw is None else raw
    problems = list(shape_problems(raw, GatewayConfig, "$"))
    for key, struct in (("instances", InstanceEntry), ("rules", RuleEntry)):
        items = raw.get(key) if isinstance(raw, dict) else None
        if isinstance(items, list):
            inner = [p for n, item in enumerate(items) for p in shape_problems(item, struct, f"$.{key}[{n}]")]
            if inner:
                problems = [problem for problem in problems if problem.path != f"$.{key}"] + inner
    if problems:
        raise invalid(origin, problems)
    config = msgspec.convert({key: value for key, value in raw.items() if value is not None}, GatewayConfig)
    problems = list(find_problems(config))
    if problems:
        raise invalid(origin, problems)
    return config


def find_problems(config: GatewayConfig) -> Iterator[ConfigProblem]:
    """Yield every broken rule across keys."""
    yield from address_problems(config.listen, config.metrics)
    if not config.instances:
        yield ConfigProblem("$.instances", [], "is empty", "name one server at least: {name: NAME, url: http://...}")
    names = {"instances": [entry.name for entry in config.instances], "rules": [rule.name for rule in config.rules]}
    for kind, listed in names.items():
        for name, count in Counter(listed).items():
            if count > 1:
                yield ConfigProblem(f"$.{kind}", name, f"is the name of {count} entries", "give each its own")
    models: set[str] = set()
    for number, entry in enumerate(config.instances):
        models.update(served_models(entry))
        parts = urlsplit(entry.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.username:
            yield ConfigProblem(f"$.instances[{number}].url", entry.url, "is not http://HOST:PORT", "leave out /v1")
        if entry.ca_file is not None and parts.scheme != "https":
            yield ConfigProblem(f"$.instances[{number}].ca_file", entry.ca_file, "needs an https:// url", "")
        if AUTO in served_models(entry):
            yield ConfigProblem(f"$.instances[{number}].models", AUTO, "is the name by which rules are asked for", "")
    yield from _on_demand_problems(config)
    for number, rule in enumerate(config.rules):
        yield from _rule_problems(rule, f"$.rules[{number}]", models)


def _on_demand_problems(config: GatewayConfig) -> Iterator[ConfigProblem]:
    most: int | None = None
    try:
        most = None if config.on_demand_memory is None else parse_bytes(config.on_demand_memory)
    except ValueError as error:
        yield ConfigProblem("$.on_demand_memory", config.on_demand_memory, str(error), "")
    for number, entry in enumerate(config.instances):
        section, path = entry.on_demand, f"$.instances[{number}].on_demand"
        if section is None:
            continue
        if not _UNIT.fullmatch(section.unit):
            yield ConfigProblem(f"{path}.unit", section.unit, "is not the name of a unit", "write ascendd@NAME")
        try:
            needed = None if section.memory is None else parse_bytes(section.memory)
        except ValueError as error:
            yield ConfigProblem(f"{path}.memory", section.memory, str(error), "")
            continue
        if most is not None and needed is None:
            hint = "write what `ascendd plan` says"
            yield ConfigProblem(f"{path}.memory", None, "is required beside on_demand_memory", hint)
        elif most is not None and needed is not None and needed > most:
            yield ConfigProblem(f"{path}.memory", section.memory, f"is more than on_demand_memory ({most} bytes)", "")


def _rule_problems(rule: RuleEntry, path: str, models: set[str]) -> Iterator[ConfigProblem]:
    if (rule.to is None) == (rule.refuse is None):
        yield ConfigProblem(path, rule.name, "needs one of `to` and `refuse`", "write to: MODEL, or refuse: REASON")
    if rule.to is not None and not as_names(rule.to):
        yield ConfigProblem(f"{path}.to", [], "is empty", "name one model at least")
    for name in as_names(rule.to):
        if name not in models:
            hint = f"known: {', '.join(sorted(models))}"
            yield ConfigProblem(f"{path}.to", name, "is served by no instance of this file", hint)
    for key in COMPARED:
        value: Any = getattr(rule.when, key)
        if value is not None:
            try:
                parse_condition(value)
            except ValueError as error:
                yield ConfigProblem(f"{path}.when.{key}", value, str(error), "")
