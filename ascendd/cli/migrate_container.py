"""A vLLM that is started in a container: what of `docker run` an instance has, and what it needs no more. Pure."""

from __future__ import annotations

import re

from ascendd.cli.migrate_source import StartCommand, Untaken, vllm_arguments

ENGINES = frozenset({"docker", "podman", "nerdctl"})
_ALONE = re.compile(r"-[dit]{1,3}|--(?:detach|interactive|tty|rm|init|privileged|no-healthcheck)")
_IMAGE = re.compile(r"vllm", re.IGNORECASE)
_CHIP = re.compile(r"/dev/davinci(\d+)(?::.*)?")
_GPUS = re.compile(r"[\"']?device=([\d,]+)[\"']?")
_WHY = {
    "--name": "the instance's name is that of its file",
    "--restart": "the supervisor restarts the engine, systemd the supervisor",
    "--device": "`ascendd instance create` writes which device nodes the unit may open",
    "--gpus": "parallel.devices; without it all that the engine needs",
    "--shm-size": "the host's /dev/shm; `ascendd doctor` looks whether it has room",
    "--env-file": "read by the container's engine, not seen here",
}
_NO_CONTAINER = "an instance runs on the host, in the sandbox of its unit"


def read_container(words: list[str], found: StartCommand) -> bool:
    """Take `docker run OPTIONS IMAGE ARGUMENTS` if vLLM is what it runs; False where it is not."""
    if "run" not in words:
        return False
    options, rest = _split(words[words.index("run") + 1 :])
    if not rest:
        return False
    image, arguments = rest[0], rest[1:]
    taken = vllm_arguments(arguments)
    # The image of vLLM's project has its server for an entry point, so arguments alone follow.
    if taken is None and not (_IMAGE.search(image) and arguments):
        return False
    found.argv = arguments if taken is None else taken
    found.untaken.append(Untaken(f"image {image}", "install that vLLM into engine.vllm.venv, on the host"))
    chips: list[str] = []
    for name, value in options:
        _take(name, value, found, chips)
    if chips:
        found.environment["ASCEND_RT_VISIBLE_DEVICES"] = ",".join(chips)
    return True


def _split(words: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the options with their values, and the image with what follows it."""
    options: list[tuple[str, str]] = []
    rest = list(words)
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).partition("=")
        if not equals and not _ALONE.fullmatch(name) and rest:
            value = rest.pop(0)
        options.append((name, value))
    return options, rest


def _take(name: str, value: str, found: StartCommand, chips: list[str]) -> None:
    if name in ("-e", "--env"):
        variable, _, setting = value.partition("=")
        found.environment[variable] = setting
    elif name in ("-p", "--publish"):
        *host, port, _ = ["", *value.split(":")] if ":" in value else ["", value, value]
        found.argv += ["--port", port.partition("/")[0]]
        if host[-1]:
            found.argv += ["--host", host[-1]]
    elif name in ("-v", "--volume") and value.count(":") >= 1:
        outside, inside = value.split(":")[:2]
        found.argv = [_moved(word, inside, outside) for word in found.argv]
        found.untaken.append(Untaken(f"{name} {value}", "paths are those of the host, and the service must read them"))
    elif name == "--device" and (match := _CHIP.fullmatch(value)) is not None:
        chips.append(match[1])
    elif name == "--gpus" and (match := _GPUS.fullmatch(value)) is not None:
        found.environment["CUDA_VISIBLE_DEVICES"] = match[1]
    else:
        found.untaken.append(Untaken(f"{name} {value}".strip(), _WHY.get(name, _NO_CONTAINER)))


def _moved(word: str, inside: str, outside: str) -> str:
    """Return a path of the container as the host has it; other words as they are."""
    name, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    if value == inside or value.startswith(inside.rstrip("/") + "/"):
        value = outside.rstrip("/") + value[len(inside.rstrip("/")) :]
    return f"{name}{equals}{value}"
