"""
What starts a vLLM today: a unit file, a start script, or the command line itself. Pure.

Read as text and never executed. Of a shell's language only what start scripts use is known: assignments, `export`,
`$NAME`, line continuations, redirections, `nohup`, `exec` and `&`. Every other line is told as not taken over.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from ascendd.errors import UsageError

_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)(?::-([^}]*))?\}|\$([A-Za-z_]\w*)")
_WRAPPERS = frozenset({"nohup", "exec", "sudo", "time", "setsid"})
_MODULE = "vllm.entrypoints.openai.api_server"
_REDIRECTION = re.compile(r"\d?(?:>>?|<)(?:&\d)?|&>>?|\d>&\d")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL|BEARER|AUTHORIZATION", re.IGNORECASE)


@dataclass(frozen=True)
class Untaken:
    """Something of the source that has no counterpart, and why or what to do instead."""

    what: str
    why: str


@dataclass
class StartCommand:
    """`argv` follows `vllm serve`; `venv` is the environment it ran from, empty where the source does not tell."""

    argv: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    venv: str = ""
    untaken: list[Untaken] = field(default_factory=list)


def is_secret(name: str) -> bool:
    """Return whether the value of a variable or option of that name must not be repeated."""
    return _SECRET.search(name) is not None


def read_source(text: str) -> StartCommand:
    """Read a unit file, a script or one command line. Raises UsageError where it starts no vLLM that can be seen."""
    found = StartCommand()
    lines = re.sub(r"\\\r?\n\s*", " ", text).splitlines()
    if any(line.strip() == "[Service]" for line in lines):
        _read_unit(lines, found)
    else:
        _read_script(lines, found)
    if not found.argv:
        runs = next((entry.what for entry in found.untaken if entry.what.startswith("ExecStart=")), "")
        hint = f" ({runs}: migrate that script)" if runs else ""
        raise UsageError(
            f"no `vllm serve` and no `python -m {_MODULE}` is in it{hint}",
            remedy="Give the script or unit whose own lines start vLLM, or the command line itself after `--`.",
        )
    return found


def read_command(argv: list[str]) -> StartCommand:
    """Read a command line that is in words already. Raises UsageError as `read_source`."""
    return read_source(shlex.join(argv))


def _read_unit(lines: list[str], found: StartCommand) -> None:
    for line in lines:
        key, equals, value = line.strip().partition("=")
        if not equals or key.startswith(("#", ";")):
            continue
        if key == "Environment":
            for word in shlex.split(value):
                name, _, setting = word.partition("=")
                found.environment[name] = setting
        elif key == "ExecStart":
            if not _take_command(shlex.split(value.lstrip("-@:+!")), found):
                found.untaken.append(Untaken(_shown(f"ExecStart={value}"), "starts no vLLM by itself"))
        elif key in _DIRECTIVES:
            found.untaken.append(Untaken(f"{key}={value}", _DIRECTIVES[key]))


_OWN_UNIT = "ascendd@.service has its own; change it with `systemctl edit ascendd@INSTANCE`"
_DIRECTIVES = {
    "EnvironmentFile": "read into the unit, not seen here; variables of CANN belong into /etc/ascendd/cann.env",
    "ExecStartPre": "`ascendd run` checks the host before it starts the engine (`ascendd doctor`)",
    "ExecStop": "SIGTERM drains: recovery.drain_timeout_s",
    "Restart": "the supervisor restarts the engine: recovery.max_restarts and backoff; systemd restarts the supervisor",
    "RestartSec": "recovery.backoff_min_s and backoff_max_s",
    "StandardOutput": "the journal, or log.file with rotation",
    "StandardError": "the journal, or log.file with rotation",
    "User": "instances run as the user ascendd; the model's folder must be readable for it",
    "Group": "instances run as the user ascendd; the model's folder must be readable for it",
    "WorkingDirectory": "paths of an instance are absolute",
    "LimitNOFILE": _OWN_UNIT,
    "LimitMEMLOCK": _OWN_UNIT,
    "TimeoutStartSec": "a load extends it while it moves on: health.load_deadline_s",
    "TimeoutStopSec": _OWN_UNIT,
    "Type": "Type=notify: ready is told once a token came",
    "KillMode": _OWN_UNIT,
}


def _read_script(lines: list[str], found: StartCommand) -> None:
    known: dict[str, str] = {}
    for line in lines:
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if (match := _ASSIGNMENT.fullmatch(text)) is not None and " " not in _unquoted(match[2]):
            known[match[1]] = _expand(_unquote(match[2]), known)
            if text.startswith("export"):
                found.environment[match[1]] = known[match[1]]
            continue
        try:
            words = [_expand(word, known) for word in shlex.split(text, comments=True)]
        except ValueError:
            found.untaken.append(Untaken(_shown(text), "not read: its quotes do not end on its line"))
            continue
        if words[0] in ("source", ".") and len(words) > 1:
            if words[1].endswith("/bin/activate"):
                found.venv = words[1].removesuffix("/bin/activate")
            elif "set_env.sh" in words[1]:
                found.untaken.append(Untaken(text, "`ascendd doctor` shows what the service gets of CANN's variables"))
            else:
                found.untaken.append(Untaken(text, "the file is not read"))
        elif not _take_command(words, found):
            found.untaken.append(Untaken(_shown(text), "a line of shell; the daemon does its own checks and waiting"))


def _take_command(words: list[str], found: StartCommand) -> bool:
    """Take `words` if they start vLLM; variables before the command are part of it."""
    while words and (words[0] in _WRAPPERS or _ASSIGNMENT.fullmatch(words[0])):
        if (match := _ASSIGNMENT.fullmatch(words[0])) is not None:
            found.environment[match[1]] = match[2]
        words = words[1:]
    if not words:
        return False
    program = PurePosixPath(words[0])
    if program.name == "env":
        return _take_command(words[1:], found)
    if program.name == "vllm" and words[1:2] == ["serve"]:
        rest = words[2:]
    elif program.name.startswith("python") and words[1:3] == ["-m", _MODULE]:
        rest = words[3:]
    else:
        return False
    found.argv = _without_redirections(rest)
    if program.is_absolute() and program.parent.name == "bin":
        found.venv = str(program.parent.parent)
    return True


def _without_redirections(words: list[str]) -> list[str]:
    kept: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in ("&", ";", "&&", "||", "|"):
            break
        if (match := _REDIRECTION.match(word)) is None:
            kept.append(word)
        elif match.end() == len(word) and "&" not in word.rstrip("&")[1:] and rest:
            rest.pop(0)  # the file's name is a word of its own
    return kept


def _unquote(text: str) -> str:
    try:
        return " ".join(shlex.split(text, comments=True))
    except ValueError:
        return text


def _unquoted(text: str) -> str:
    return re.sub(r"\"[^\"]*\"|'[^']*'|\s*#.*$", "", text).strip()


def _expand(text: str, known: dict[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        return known.get(match[1] or match[3], match[2] if match[2] is not None else match[0])

    return _VARIABLE.sub(value, text)


def _shown(text: str) -> str:
    """Return the line, or its first word where a secret may be behind it."""
    return f"{text.split(maxsplit=1)[0].partition('=')[0]} ..." if is_secret(text) else text[:120]
