"""
`python -m ascendd.cli.man_page FOLDER` writes man8/ascendd.8 and man5/ascendd.yaml.5 from the program itself.

Verbs, options and their help come from the command line, keys, rules and defaults from the schema; so a page cannot say
other than what is installed. Roff: man-pages(7).
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import typer.main

from ascendd import __version__
from ascendd.cli.app import build_app
from ascendd.config.schema import InstanceConfig, Section
from ascendd.errors import ExitCode

_EXITS = {
    ExitCode.USAGE: "wrong usage",
    ExitCode.MODEL: "the model is missing, damaged or not supported",
    ExitCode.PREFLIGHT: "a check of the host refuses the start",
    ExitCode.HOST: "the host does not give what is needed",
    ExitCode.CONFIG: "the instance file is wrong",
}


def command_page() -> str:
    """Return ascendd(8)."""
    root = typer.main.get_command(build_app())
    lines = [
        *_head("ascendd", 8),
        ".SH NAME",
        r"ascendd \- serve large language models on Ascend NPU servers",
        ".SH SYNOPSIS",
        r".B ascendd",
        r"[\-\-version] \fIVERB\fR [\fIoptions\fR]",
        ".SH DESCRIPTION",
        _text(
            "An instance is a file /etc/ascendd/instances/NAME.yaml, see ascendd.yaml(5), and runs as the unit "
            "ascendd@NAME.service. The verbs check the host, convert models, plan memory and run instances."
        ),
        ".SH VERBS",
    ]
    lines += [line for name, verb in root.commands.items() for line in _verb(name, verb)]  # type: ignore[attr-defined]
    lines += [".SH EXIT STATUS", ".TP", "0", "done"]
    lines += [line for code, said in _EXITS.items() for line in (".TP", str(int(code)), said)]
    lines += [
        ".SH FILES",
        *_pair("/etc/ascendd/instances/NAME.yaml", "what an instance is"),
        *_pair("/var/lib/ascendd", "models and state"),
        *_pair("/opt/ascendd/current", "the release in use; ascendd release list shows all"),
        *_pair("/opt/ascendd/current/docs/runbooks", "what to do for each error code"),
        ".SH SEE ALSO",
        ".BR ascendd.yaml (5),",
        ".BR systemctl (1),",
        ".BR journalctl (1)",
    ]
    return "\n".join(lines) + "\n"


def file_page() -> str:
    """Return ascendd.yaml(5)."""
    lines = [
        *_head("ascendd.yaml", 5),
        ".SH NAME",
        r"ascendd.yaml \- an instance of ascendd",
        ".SH DESCRIPTION",
        _text(
            "A YAML file with the sections below; only model.path is required. `ascendd config check FILE` lists every "
            "fault with its line of remedy, `ascendd config show --resolved` every value that is used and its origin."
        ),
    ]
    hints = typing.get_type_hints(InstanceConfig)
    lines += _keys(InstanceConfig, lambda key: not _is_section(hints[key]))
    for field in msgspec.structs.fields(InstanceConfig):
        section = hints[field.name]
        if _is_section(section):
            lines += [f".SH {field.name.upper()}", _text(inspect.getdoc(section) or "")]
            lines += _keys(section)
    lines += [".SH SEE ALSO", ".BR ascendd (8)"]
    return "\n".join(lines) + "\n"


def _is_section(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Section)


def _keys(section: type[Section], wanted: Callable[[str], bool] = lambda _: True) -> list[str]:
    comments = _comments(section)
    schema = msgspec.json.schema(section)
    properties = schema["$defs"][section.__name__]["properties"]
    lines = []
    for field in msgspec.structs.fields(section):
        if not wanted(field.name):
            continue
        rule = _rule(properties[field.encode_name])
        default = "required" if field.required else f"default {_default(field)}"
        lines += [".TP", rf"\fB{_text(field.encode_name)}\fR ({_text(', '.join(filter(None, (rule, default))))})"]
        lines.append(_text(comments.get(field.name, "")) or r"\&")
    return lines


def _default(field: Any) -> str:
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return "none" if value is None else msgspec.json.encode(value, enc_hook=str).decode()


def _rule(schema: dict[str, Any]) -> str:
    """Say a JSON schema in words."""
    if "anyOf" in schema:
        return " or ".join(filter(None, (_rule(part) for part in schema["anyOf"] if part.get("type") != "null")))
    if "enum" in schema:
        return "one of " + ", ".join(str(value) for value in schema["enum"] if value is not None)
    kind = str(schema.get("type", ""))
    low, high = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum")
    more = "above " if "exclusiveMinimum" in schema else "from "
    bounds = "" if low is None else f" {more}{low}" + ("" if high is None else f" to {high}")
    return kind + bounds


def _comments(section: type) -> dict[str, str]:
    """Return the comment lines that stand before each key in the source."""
    found: dict[str, str] = {}
    held: list[str] = []
    for line in inspect.getsource(section).splitlines():
        text = line.strip()
        if text.startswith("#"):
            held.append(text.lstrip("# "))
            continue
        name, colon, _ = text.partition(":")
        if colon and name.isidentifier() and held:
            found[name] = " ".join(held)
        held = []
    return found


def _verb(name: str, command: Any, parent: str = "") -> list[str]:
    path = f"{parent}{name}"
    if getattr(command, "commands", None):
        return [line for sub, inner in command.commands.items() for line in _verb(sub, inner, f"{path} ")]
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    words = " ".join(rf"\fI{_text(parameter.metavar or parameter.name.upper())}\fR" for parameter in arguments)
    lines = [f".SS {_text(path)} {words}".rstrip(), _text(" ".join((command.help or "").split()))]
    for parameter in command.params:
        if parameter.param_type_name == "option" and not parameter.hidden:
            lines += _pair(", ".join(parameter.opts), parameter.help or "")
    return lines


def _pair(term: str, said: str) -> list[str]:
    return [".TP", rf"\fB{_text(term)}\fR", _text(said) or r"\&"]


def _head(title: str, section: int) -> list[str]:
    return [f'.TH "{title.upper()}" "{section}" "" "ascendd {__version__}" "ascendd"']


def _text(text: str) -> str:
    """Escape what roff would take for its own: backslashes, hyphens of options, a dot or quote at the start."""
    text = " ".join(text.split()).replace("\\", r"\e").replace("-", r"\-")
    return r"\&" + text if text.startswith((".", "'")) else text


def main(folder: Path) -> None:
    """Write both pages below `folder`."""
    for name, text in (("man8/ascendd.8", command_page()), ("man5/ascendd.yaml.5", file_page())):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
