"""
What starts a vLLM today: a unit file, a start script, or the command line itself. Pure.

Read as text and never executed. Of a shell's language only what start scripts use is known: assignments, `export`,
`$NAME`, line continuations, redirections, `&&`, `bash -c`, `nohup`, `exec` and `&`. Every other line is told as not
taken over, and so is what vLLM is run by (numactl, uv, a container).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from ascendd.errors import UsageError

_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)(?::-([^}]*))?\}|\$([A-Za-z_]\w*)")
_WRAPPERS = frozenset({"nohup", "exec", "sudo", "time", "setsid"})
_MODULE = "vllm.entrypoints.openai.api_server"
_OLD_MODULE = "vllm.entrypoints.api_server"
_MAIN_MODULE = "vllm.entrypoints.cli.main"
_SHELLS = frozenset({"bash", "sh", "dash"})
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
            words = [_expand(word, found.environment) for word in shlex.split(value.lstrip("-@:+!"))]
            if not _take_command(words, found):
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
        for command in _commands(words):
            _read_command(command, found)


def _commands(words: list[str]) -> Iterator[list[str]]:
    """Yield the commands that `&&` and `;` join."""
    command: list[str] = []
    for word in words:
        if word in ("&&", ";") or word.endswith(";"):
            command += [word.rstrip(";")] if word.rstrip(";&") else []
            if command:
                yield command
            command = []
        else:
            command.append(word)
    if command:
        yield command


def _read_command(words: list[str], found: StartCommand) -> None:
    text = " ".join(words)
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
    if program.name in _SHELLS:
        flag = next((at for at, word in enumerate(words) if re.fullmatch(r"-\w*c", word)), len(words))
        _read_script(words[flag + 1 : flag + 2], found)
        return bool(found.argv)
    from ascendd.cli.migrate_container import ENGINES, read_container

    if program.name in ENGINES and read_container(words, found):
        return True
    # What runs it stands before it: numactl, taskset, uv run, docker exec, ...
    start = next((at for at in range(len(words)) if vllm_arguments(words[at:]) is not None), None)
    if start is None:
        return False
    if start:
        found.untaken.append(Untaken(_shown(" ".join(words[:start])), _WHY_NOT_RUN.get(program.name, _RUN_OTHERWISE)))
    found.argv = _without_redirections(vllm_arguments(words[start:]) or [])
    program = PurePosixPath(words[start])
    if _OLD_MODULE in words[start : start + 3]:
        found.untaken.append(Untaken(_OLD_MODULE, "its route /generate is gone; clients use OpenAI's routes"))
    if program.is_absolute() and program.parent.name == "bin":
        found.venv = str(program.parent.parent)
    return True


_RUN_OTHERWISE = "the unit runs the daemon; what stood before vLLM is not taken over"
_WHY_NOT_RUN = {
    "numactl": "`ascendd instance create` binds CPUs and memory near the chips (50-devices.conf)",
    "taskset": "`ascendd instance create` binds CPUs and memory near the chips (50-devices.conf)",
    "uv": "install vLLM into a folder of its own and name it in engine.vllm.venv",
    "conda": "name the folder of that environment in engine.vllm.venv",
}


def vllm_arguments(words: list[str]) -> list[str] | None:
    """Return what follows `vllm serve` and its like, None where `words` do not begin with one."""
    program = PurePosixPath(words[0]).name if words else ""
    if program == "vllm" and words[1:2] == ["serve"]:
        return words[2:]
    if program.startswith("python") and words[1:2] == ["-m"]:
        if words[2:3] in ([_MODULE], [_OLD_MODULE]):
            return words[3:]
        if words[2:4] == [_MAIN_MODULE, "serve"]:
            return words[4:]
    return None


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
