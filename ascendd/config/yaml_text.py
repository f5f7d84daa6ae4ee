"""YAML text -> plain data. A key written twice is an error: the loader would keep one of them and say nothing."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

from ascendd.errors import ConfigInvalid, ConfigSyntaxError


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which notes where a mapping names a key again."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.repeated: list[str] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        first_lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            line = key.start_mark.line + 1
            if key.value in first_lines:
                self.repeated.append(f"`{key.value}` in lines {first_lines[key.value]} and {line}")
            first_lines.setdefault(key.value, line)
        return super().construct_mapping(node, deep)


def parse_yaml(text: str, origin: str) -> Any:
    """Return the data of `text`, called `origin` in messages. Raises ConfigSyntaxError, ConfigInvalid (a key twice)."""
    try:
        loader = _Loader(text)
        try:
            data = loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise ConfigSyntaxError(f"{origin} is not YAML: {error}", path=origin) from error
    except RecursionError:
        raise ConfigSyntaxError(f"{origin} is not YAML: it is nested too deep", path=origin) from None
    except (ValueError, TypeError, OverflowError) as error:
        # A scalar that looks like a date or number and is none, such as 2024-13-45.
        raise ConfigSyntaxError(
            f"{origin} has a value that cannot be read: {error}",
            remedy="Put the value between quotes if it is text.",
            path=origin,
        ) from error
    if loader.repeated:
        listed = "".join(f"\n  {what}" for what in loader.repeated)
        raise ConfigInvalid(
            f"{origin}: the same key is written twice{listed}",
            remedy="Keep one of them.",
            problems=loader.repeated,
        )
    return data
