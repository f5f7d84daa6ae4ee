"""YAML text -> InstanceConfig. All problems at once, each with path, value, rule and what to write."""

from __future__ import annotations

import difflib
import types
import typing
from pathlib import Path
from typing import Any

import msgspec

from ascendd.config.schema import InstanceConfig
from ascendd.config.validate import ConfigProblem, validate
from ascendd.config.yaml_text import parse_yaml
from ascendd.errors import ConfigFileMissing, ConfigInvalid

INSTANCES_DIR = Path("/etc/ascendd/instances")


def load_file(path: Path) -> InstanceConfig:
    """Read and check one instance file. Raises ConfigFileMissing, ConfigSyntaxError or ConfigInvalid."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        known = sorted(p.stem for p in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
        there = f"{path.parent} has: {', '.join(known)}" if known else f"{path.parent} has no instance files"
        raise ConfigFileMissing(f"{path} does not exist; {there}", path=str(path)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigFileMissing(f"{path} cannot be read: {error}", path=str(path)) from error
    return load_text(text, origin=str(path))


def load_text(text: str, origin: str = "configuration") -> InstanceConfig:
    """Check YAML `text`; `origin` names it in messages."""
    raw = parse_yaml(text, origin)
    return convert({} if raw is None else raw, origin)


def convert(raw: Any, origin: str = "configuration") -> InstanceConfig:
    """Turn plain data into a checked InstanceConfig. Raises ConfigInvalid with every problem found."""
    problems = list(shape_problems(raw, InstanceConfig, "$"))
    told = {problem.path for problem in problems}
    try:
        # The rules across keys are checked on what is left, so that one run tells everything.
        rest = {"model": {}} | (_without(told, raw, "$") if isinstance(raw, dict) else {})
        # `engine:` with nothing below it is an empty section.
        rest = {key: {} if value is None else value for key, value in rest.items()}
        if told:
            rest["model"] = {"path": "(not there)"} | rest["model"]
        config = msgspec.convert(rest, InstanceConfig)
    except msgspec.ValidationError:
        raise invalid(origin, problems) from None
    problems += [problem for problem in validate(config) if problem.path not in told]
    if problems:
        raise invalid(origin, problems)
    return config


def _without(paths: set[str], raw: Any, path: str) -> Any:
    """Return `raw` without the keys at `paths`."""
    if not isinstance(raw, dict):
        return raw
    return {key: _without(paths, value, f"{path}.{key}") for key, value in raw.items() if f"{path}.{key}" not in paths}


def invalid(origin: str, problems: list[ConfigProblem]) -> ConfigInvalid:
    """Build the error that lists all `problems`."""
    lines = "\n".join(f"  {problem}" for problem in problems)
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return ConfigInvalid(f"{origin}: {count}\n{lines}", problems=[str(problem) for problem in problems])


def shape_problems(raw: Any, struct: type[msgspec.Struct], path: str) -> typing.Iterator[ConfigProblem]:
    """Check keys and types level by level, because msgspec itself stops at the first."""
    if not isinstance(raw, dict):
        yield ConfigProblem(
            path, raw, "must be a mapping of keys to values", f"known keys: {', '.join(struct.__struct_fields__)}"
        )
        return
    hints = typing.get_type_hints(struct, include_extras=True)
    required = {field.name for field in msgspec.structs.fields(struct) if field.required}
    for key in raw:
        if key not in hints:
            near = difflib.get_close_matches(str(key), hints, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"known keys: {', '.join(hints)}"
            yield ConfigProblem(f"{path}.{key}", raw[key], "is not a known key", hint)
    for key in sorted(required - raw.keys()):
        yield ConfigProblem(f"{path}.{key}", None, "is required", f"add `{key}:`")
    for key, hint_type in hints.items():
        if key not in raw:
            continue
        section = _section(hint_type)
        if section is not None:
            # `engine:` with nothing below it is an empty section; one that may be left out is left out so.
            if raw[key] is not None or section is hint_type:
                yield from shape_problems({} if raw[key] is None else raw[key], section, f"{path}.{key}")
            continue
        try:
            msgspec.convert(raw[key], hint_type)
        except msgspec.ValidationError as error:
            yield ConfigProblem(f"{path}.{key}", raw[key], _rule(str(error), hint_type), "")


def _section(hint_type: Any) -> type[msgspec.Struct] | None:
    """Return the section that a key is, or may be, else None."""
    is_choice = typing.get_origin(hint_type) in (typing.Union, types.UnionType)
    kinds = typing.get_args(hint_type) if is_choice else (hint_type,)
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, msgspec.Struct)), None)


def _rule(reason: str, hint_type: Any) -> str:
    """Say what the value must be; for a choice, msgspec only says that it is none of them."""
    choices = [choice for part in (hint_type, *typing.get_args(hint_type)) for choice in _choices(part)]
    if choices:
        return f"must be one of {', '.join(map(str, choices))}"
    reason = reason.split(" - at ", maxsplit=1)[0]
    return reason[:1].lower() + reason[1:]


def _choices(hint_type: Any) -> tuple[Any, ...]:
    return typing.get_args(hint_type) if typing.get_origin(hint_type) is typing.Literal else ()
