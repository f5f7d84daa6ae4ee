"""Rules across keys of an InstanceConfig. Pure; reports all problems at once."""

from __future__ import annotations

import ipaddress
import math
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ascendd.config.cluster_rules import cluster_problems
from ascendd.config.quantity import format_bytes, parse_bytes
from ascendd.config.schema import InstanceConfig, ListenSection, MetricsSection
from ascendd.config.vllm_rules import vllm_problems

# No setting makes sense beyond these; the first is held in memory for each open request.
_MOST_BYTES = {
    "$.listen.max_body_bytes": 1 << 30,
    "$.engine.kv_cache_memory": 1 << 50,
    "$.log.max_bytes": 1 << 40,
    "$.log.budget": 1 << 50,
}
# Values that are text for a model, which may have lines.
_TEXTS = frozenset({"$.preprocess.system_prompt"})
# Bounded: a few lines of YAML can name each other into a value without end.
_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxlist, _REPR.maxstring, _REPR.maxother = 2, 8, 76, 76


class ConfigProblem(msgspec.Struct, frozen=True):
    """One broken rule: where, which value, why, and what to write instead."""

    path: str
    value: Any
    rule: str
    hint: str

    def __str__(self) -> str:
        value = "" if self.value is None else f" = {_short(self.value)}"
        return f"{self.path}{value}: {self.rule}" + (f"; {self.hint}" if self.hint else "")


def validate(config: InstanceConfig) -> list[ConfigProblem]:
    """Return every broken rule of `config`, in the order of the file; an empty list means that it can be used."""
    problems: list[ConfigProblem] = []

    def add(path: str, value: object, rule: str, hint: str) -> None:
        problems.append(ConfigProblem(path, value, rule, hint))

    if not config.model.path.strip():
        add(
            "$.model.path",
            config.model.path,
            "must name a folder",
            "write the path of a converted or Hugging Face model",
        )
    problems += address_problems(config.listen, config.metrics)
    tuning, most = config.tuning, config.engine.max_num_seqs
    if tuning.min_num_seqs is not None and tuning.min_num_seqs > most:
        add(
            "$.tuning.min_num_seqs",
            tuning.min_num_seqs,
            f"is above engine.max_num_seqs = {most}, the most that tuning may choose",
            f"write {most} or less, or raise engine.max_num_seqs",
        )
    if tuning.lower_below > tuning.raise_above:
        add(
            "$.tuning.lower_below",
            tuning.lower_below,
            f"is above raise_above = {tuning.raise_above}, so that one queue would both raise and lower",
            f"write {tuning.raise_above} or less",
        )

    endpoint = config.tracing.endpoint
    if endpoint is not None and (not (parts := urlsplit(endpoint)).hostname or parts.scheme not in ("http", "https")):
        add(
            "$.tracing.endpoint",
            endpoint,
            "is not the address of a collector",
            "write http://127.0.0.1:4318/v1/traces",
        )
    chosen = [
        key
        for key in ("kv_cache_memory", "max_num_blocks", "gpu_memory_utilization")
        if getattr(config.engine, key) is not None
    ]
    if len(chosen) > 1:
        add(
            "$.engine",
            " and ".join(chosen),
            "at most one of these sets the size of the KV cache",
            f"keep `{chosen[0]}` and remove the rest",
        )
    for path, value in (
        ("$.listen.max_body_bytes", config.listen.max_body_bytes),
        ("$.engine.kv_cache_memory", config.engine.kv_cache_memory),
        ("$.log.max_bytes", config.log.max_bytes),
        ("$.log.budget", config.log.budget),
    ):
        if value is not None:
            try:
                num_bytes = parse_bytes(value)
            except ValueError as error:
                add(path, value, str(error).removeprefix(repr(value)).strip(), "")
            else:
                if num_bytes > (most := _MOST_BYTES[path]):
                    add(path, value, f"is more than {format_bytes(most)}", f"write {format_bytes(most)} or less")
    tokens, seqs = config.engine.max_num_batched_tokens, config.engine.max_num_seqs
    if tokens is not None and tokens < seqs:
        add(
            "$.engine.max_num_batched_tokens",
            tokens,
            f"is less than max_num_seqs ({seqs}), so a full batch could not decode",
            f"write {seqs} or more",
        )

    world_size = config.parallel.tensor_parallel_size * config.parallel.pipeline_parallel_size
    devices = config.parallel.devices
    if devices is not None and len(set(devices)) != world_size:
        add(
            "$.parallel.devices",
            devices,
            f"must name {world_size} different devices (tensor x pipeline parallel size)",
            "",
        )
    low, high = config.recovery.backoff_min_s, config.recovery.backoff_max_s
    if low is not None and high is not None and low > high:
        add("$.recovery.backoff_min_s", low, f"is more than backoff_max_s ({high:g})", "")
    problems += _adapter_problems(config)
    if config.preprocess.keep_last_tokens is not None and config.preprocess.truncate != "last":
        add("$.preprocess.keep_last_tokens", config.preprocess.keep_last_tokens, "needs truncate: last", "write both")
    problems += [ConfigProblem(*problem) for problem in (*vllm_problems(config), *cluster_problems(config))]
    problems += _value_problems(config, "$")
    return problems


def address_problems(listen: ListenSection, metrics: MetricsSection) -> Iterator[ConfigProblem]:
    """Yield what is wrong with the two addresses of a process tree; the gateway has such a pair, too."""
    for section, host in (("listen", listen.host), ("metrics", metrics.host)):
        if not _is_host(host):
            hint = "write 127.0.0.1 for this machine only, 0.0.0.0 for all"
            yield ConfigProblem(f"$.{section}.host", host, "is not an IP address or `localhost`", hint)
    if metrics.enabled and listen.port == metrics.port != 0:
        yield ConfigProblem("$.metrics.port", metrics.port, "is also listen.port", "give /metrics another port")
    if not _is_loopback(metrics.host):
        rule, hint = (
            "is not a loopback address; /metrics has no keys",
            "write 127.0.0.1, and a reverse proxy for other hosts",
        )
        yield ConfigProblem("$.metrics.host", metrics.host, rule, hint)


def _value_problems(value: Any, path: str) -> Iterator[ConfigProblem]:
    """Rules that hold for every value, wherever it stands."""
    if isinstance(value, msgspec.Struct):
        for key in value.__struct_fields__:
            yield from _value_problems(getattr(value, key), f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _value_problems(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _value_problems(item, f"{path}.{key}")
    elif isinstance(value, float) and not math.isfinite(value):
        yield ConfigProblem(path, value, "is not a finite number", "")
    elif isinstance(value, str) and not value.isprintable() and path not in _TEXTS:
        yield ConfigProblem(path, value, "has a line break or another character that does not print", "remove it")
    elif value == "":
        yield ConfigProblem(path, value, "is empty", "write a value, or leave the key out")


def _adapter_problems(config: InstanceConfig) -> Iterator[ConfigProblem]:
    model, engine = config.model, config.engine
    seen: set[str] = set()
    for index, adapter in enumerate(model.adapters):
        path = f"$.model.adapters[{index}]"
        if not adapter.name.strip() or not adapter.path.strip():
            yield ConfigProblem(path, adapter.name, "needs a name and a path", "write {name: NAME, path: FOLDER}")
        if adapter.name in seen:
            yield ConfigProblem(f"{path}.name", adapter.name, "is the name of an earlier adapter", "give it another")
        if adapter.name == model.name:
            yield ConfigProblem(f"{path}.name", adapter.name, "is also model.name", "give it another")
        seen.add(adapter.name)
    if model.adapter_root is not None and not Path(model.adapter_root).is_absolute():
        yield ConfigProblem("$.model.adapter_root", model.adapter_root, "is not an absolute path", "begin it with /")
    if engine.enable_lora is False and (model.adapters or model.adapter_root):
        hint = "remove it, or model.adapters and model.adapter_root"
        yield ConfigProblem("$.engine.enable_lora", False, "contradicts the adapters of model", hint)
    if engine.max_cpu_loras < engine.max_loras:
        yield ConfigProblem(
            "$.engine.max_cpu_loras",
            engine.max_cpu_loras,
            f"is less than max_loras ({engine.max_loras}), so a step's adapters would not fit host memory",
            f"write {engine.max_loras} or more",
        )


def _is_host(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_host(host) and ipaddress.ip_address(host).is_loopback)


def _short(value: Any) -> str:
    text = _REPR.repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
