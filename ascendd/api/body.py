"""The body of a request: from bytes to a Struct, where whatever is wrong is named with its place, value and rule."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from ascendd.errors import InvalidRequest

T = TypeVar("T", bound=msgspec.Struct)

_MAX_SHOWN = 80
# Python turns no longer texts into integers, and nothing here takes a number with so many digits.
_MAX_DIGITS = 100
_VALIDATION = re.compile(r"^(?P<reason>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_EXPECTED = re.compile(r"^Expected `(?P<kinds>[^`]*)`, got `[^`]*`$")
_STEP = re.compile(r"\[(?P<index>[0-9]+)\]|(?P<name>[^.\[\]]+)|(?P<any>\[\.\.\.\])")
_KINDS = {
    "int": "an integer", "float": "a number", "str": "a string", "bool": "true or false", "null": "null",
    "array": "a list", "object": "an object",
}  # fmt: skip
_JSON_NAMES = {list: "an array", str: "a string", bool: "true or false", type(None): "null"}


def decode_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in `body`. Raises InvalidRequest for anything else."""
    try:
        raw = msgspec.json.decode(body)
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply", openai_code="invalid_json") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _second_look(body, str(error)) from None
    if not isinstance(raw, dict):
        name = _JSON_NAMES.get(type(raw), "a number")
        raise InvalidRequest(f"the body must be a JSON object, not {name}", openai_code="invalid_json")
    return raw


def convert(raw: Mapping[str, Any], kind: type[T]) -> T:
    """Return `raw` as a `kind`; unknown fields are left out. Raises InvalidRequest that names field, value and rule."""
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        match = _VALIDATION.match(str(error))
        reason, path = (str(error), "") if match is None else (match["reason"], match["path"] or "")
        where, value = _find(raw, path)
        rule = _EXPECTED.match(reason)
        text = reason[:1].lower() + reason[1:]
        if rule is not None:
            text = f"is {shown(value)}; it must be {_kinds(rule['kinds'])}"
        elif "missing required field" in text:
            text = f"lacks {text.removeprefix('object missing required field ')}"
        raise InvalidRequest(f"`{where}` {text}" if where else f"the body {text}", param=where or None) from None


def refuse_unknown(raw: Mapping[str, Any], *kinds: type[msgspec.Struct], also: frozenset[str] = frozenset()) -> None:
    """Raise InvalidRequest for the first field of `raw` that none of `kinds` has; for those who ask to be strict."""
    known = also.union(*(kind.__struct_fields__ for kind in kinds))
    for name in raw:
        if name not in known:
            raise InvalidRequest(
                f"`{name[:_MAX_SHOWN]}` is not a field of this route; it would be ignored, which `strict` forbids",
                param=name[:_MAX_SHOWN],
                openai_code="unknown_parameter",
            )


def shown(value: Any) -> str:
    """Return `value` as JSON for a message, cut to a length that fits a line."""
    try:
        text = json.dumps(value, ensure_ascii=False)
        text.encode()
    except (ValueError, TypeError, RecursionError):
        text = ascii(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}... ({len(text)} characters)"


def _kinds(kinds: str) -> str:
    names = [_KINDS.get(kind.strip(), kind.strip()) for kind in kinds.split("|")]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _find(raw: Any, path: str) -> tuple[str, Any]:
    """Return how a client writes msgspec's `path`, and the value there; values of a mapping are not told by msgspec."""
    written, value = "", raw
    for step in _STEP.finditer(path):
        if step["any"]:
            return written, value
        if step["index"]:
            written += step[0]
            value = value[int(step["index"])] if isinstance(value, list) else None
        else:
            written += f".{step['name']}" if written else step["name"]
            value = value.get(step["name"]) if isinstance(value, dict) else None
    return written, value


def _second_look(body: bytes, reason: str) -> InvalidRequest:
    """Say what msgspec does not take although it is JSON: numbers beyond all range, halves of surrogate pairs."""
    if reason.startswith(("Integer value out of range", "Number out of range", "Input data was truncated", "JSON is")):
        try:
            raw = json.loads(body, parse_int=_integer, parse_float=_number, parse_constant=_constant)
        except (ValueError, RecursionError):
            raw = None
        for path, value in _walk(raw, ""):
            if isinstance(value, _OutOfRange):
                return InvalidRequest(f"`{path}` is {value.text}, which no number here may be", param=path)
            if isinstance(value, str) and _has_surrogate(value):
                return InvalidRequest(f"`{path}` holds half of a surrogate pair, which is no character", param=path)
    return InvalidRequest(f"the body is not JSON: {reason.partition(' - at `')[0]}", openai_code="invalid_json")


class _OutOfRange:
    def __init__(self, text: str) -> None:
        self.text = text if len(text) <= 24 else f"{text[:16]}... ({len(text)} digits)"


def _integer(text: str) -> Any:
    return int(text) if len(text) <= _MAX_DIGITS else _OutOfRange(text)


def _number(text: str) -> Any:
    value = float(text)
    return _OutOfRange(text) if value in (float("inf"), float("-inf")) else value


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield every value below `value` with its place; depth is bounded by what the decoder takes."""
    if isinstance(value, dict):
        for name, item in value.items():
            if _has_surrogate(name):
                yield path or "body", name
            else:
                yield from _walk(item, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _walk(item, f"{path}[{index}]")
    else:
        yield path, value
