"""What follows --lora-modules: NAME=PATH, or vLLM's JSON form, as often as there are adapters."""

from __future__ import annotations

import json
from typing import Any

from ascendd.errors import UsageError


def read_adapters(flag: str, first: str, rest: list[str]) -> list[dict[str, str]]:
    """Return the adapters of `first` and of what follows it, taken from `rest` as long as it has their form."""
    adapters = _parse(flag, first)
    while rest and _looks_like_one(rest[0]):
        adapters += _parse(flag, rest.pop(0))
    return adapters


def _looks_like_one(text: str) -> bool:
    return text.startswith(("{", "[")) or ("=" in text and not text.startswith("-"))


def _parse(flag: str, text: str) -> list[dict[str, str]]:
    if text.startswith(("{", "[")):
        try:
            data: Any = json.loads(text)
        except ValueError:
            raise UsageError(f"{flag} has JSON that cannot be read") from None
        return [_from_json(flag, entry) for entry in (data if isinstance(data, list) else [data])]
    name, separator, path = text.partition("=")
    if not separator or not name or not path:
        raise UsageError(f'{flag} needs NAME=PATH, or {{"name": ..., "path": ...}}')
    return [{"name": name, "path": path}]


def _from_json(flag: str, entry: Any) -> dict[str, str]:
    # base_model_name is only a label there; an adapter here belongs to the one model of the instance.
    known = {"name", "path", "base_model_name"}
    if not isinstance(entry, dict) or not {"name", "path"} <= entry.keys() <= known:
        raise UsageError(f"{flag} takes JSON objects with name and path")
    if not all(isinstance(value, str) and value for value in (entry["name"], entry["path"])):
        raise UsageError(f"{flag}: name and path are text")
    return {"name": entry["name"], "path": entry["path"]}
