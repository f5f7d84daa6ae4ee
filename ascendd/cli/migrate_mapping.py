"""What a vLLM that runs today becomes: an instance's keys for one backend, and what has no counterpart. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ascendd.cli.migrate_source import StartCommand, Untaken, is_secret
from ascendd.cli.serve_flags import FLAGS, Kind, parse
from ascendd.config.vllm_rules import OWNED
from ascendd.errors import UsageError

_SECRET_OPTIONS = frozenset({"--api-key", "--api-keys", "--hf-token", "--ssl-keyfile-password"})
_NO_VALUE = frozenset({Kind.ON, Kind.OFF, Kind.SWITCH})
_SET_BY_DAEMON = (
    ("ASCEND_", "CANN's variables are read from /etc/ascendd/cann.env"),
    ("LD_LIBRARY_PATH", "CANN's variables are read from /etc/ascendd/cann.env"),
    ("PYTHONPATH", "the environment of vLLM is engine.vllm.venv, whole"),
    ("HCCL_", "the daemon sets what an instance on one host needs"),
    ("TASK_QUEUE_ENABLE", "set by the daemon on an NPU"),
    ("PYTORCH_NPU_ALLOC_CONF", "set by the daemon on an NPU"),
    ("HF_", "nothing is downloaded: model.path is a folder"),
    ("TRANSFORMERS_", "nothing is downloaded: model.path is a folder"),
    ("VLLM_USE_MODELSCOPE", "nothing is downloaded: model.path is a folder"),
)


@dataclass
class Migrated:
    """`raw` is plain data for an instance's file; `todo` is what an operator has to do before it serves as before."""

    raw: dict[str, dict[str, Any]] = field(default_factory=dict)
    untaken: list[Untaken] = field(default_factory=list)
    todo: list[str] = field(default_factory=list)

    def put(self, section: str, key: str, value: Any) -> None:
        """Set one key of a section; the keys of a group are set one by one."""
        there = self.raw.setdefault(section, {})
        known = there.get(key)
        there[key] = known | value if isinstance(known, dict) and isinstance(value, dict) else value


def migrate(source: StartCommand, backend: str, venv: str = "") -> Migrated:
    """Return what `source` becomes for `backend`. Raises UsageError where no model is named."""
    found = Migrated(untaken=list(source.untaken))
    model, groups = _grouped(source.argv)
    if not model:
        is_elsewhere = any(name == "--config" for name, _ in groups)
        raise UsageError(
            "the command names no model" + (": its options are in the file behind --config" if is_elsewhere else ""),
            remedy="Give the command as `vllm serve MODEL ...`"
            + (", with the options of that file written out." if is_elsewhere else "."),
        )
    found.put("model", "path", model)
    args: dict[str, Any] = {}
    for name, values in groups:
        _take_option(found, backend, name, values, args)
    _take_environment(found, source.environment, backend)
    if backend == "vllm":
        place = venv or source.venv
        if not place:
            found.todo.append("engine.vllm.venv: write the folder that has bin/vllm (the source does not tell)")
        vllm: dict[str, Any] = {"venv": place or "/opt/vllm"}
        found.raw["engine"] = {"backend": "vllm", "vllm": vllm | ({"args": args} if args else {})} | found.raw.get(
            "engine", {}
        )
    _say_differences(found, model)
    found.todo = list(dict.fromkeys(found.todo))
    order = ("model", "listen", "parallel", "engine")
    found.raw = {
        key: found.raw[key] for key in (*order, *(key for key in found.raw if key not in order)) if key in found.raw
    }
    return found


def _grouped(argv: list[str]) -> tuple[str, list[tuple[str, list[str]]]]:
    """Return the model and each option with what follows it."""
    model = ""
    groups: list[tuple[str, list[str]]] = []
    open_for = 0  # values that the last option may still take
    for word in argv:
        if word.startswith("-") and not _is_number(word):
            name, has_value, value = word.partition("=")
            name = name.replace("_", "-")
            groups.append((name, [value] if has_value else []))
            kind = next((flag.kind for flag in FLAGS if name in flag.names), None)
            open_for = 0 if has_value else 1 if kind in _NO_VALUE else 1_000
        elif open_for and not (open_for == 1 and word.lower() not in ("true", "false")):
            groups[-1][1].append(word)
            open_for = 0 if open_for == 1 else open_for
        else:
            model = model or word
    for name, values in groups:
        if name == "--model" and values:
            model = values[0]
    return model, [(name, values) for name, values in groups if name != "--model"]


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _take_option(found: Migrated, backend: str, name: str, values: list[str], args: dict[str, Any]) -> None:
    if name in _SECRET_OPTIONS:
        found.untaken.append(Untaken(f"{name} ...", "secrets are in files: listen.api_key_file (`ascendd key`)"))
        if name.startswith("--api-key"):
            found.todo.append("listen.api_key_file: write the key into a file, mode 0640, owner root, group ascendd")
        return
    if name == "--served-model-name" and len(values) > 1:
        found.untaken.append(Untaken(f"{name} {' '.join(values[1:])}", f"a model has one name: {values[0]}"))
        values = values[:1]
    shown = " ".join([name, *values])
    try:
        parsed = parse(["MODEL", name, *values])
    except UsageError as error:
        bare = name.lstrip("-")
        if backend == "native" or bare in OWNED or not name.startswith("--"):
            why = (
                f"write {OWNED[bare]}"
                if bare in OWNED and backend == "vllm"
                else error.message.partition(": ")[2] or error.message
            )
            found.untaken.append(Untaken(shown, why))
        elif len(values) > 1:
            found.untaken.append(Untaken(shown, "engine.vllm.args has one value for an option"))
        else:
            args[bare] = _value(values)
        return
    for section, keys in parsed.raw.items():
        for key, value in keys.items():
            if (section, key) == ("engine", "kv_cache_dtype") and str(value).startswith("fp8"):
                if backend == "vllm":
                    args["kv-cache-dtype"] = value
                else:
                    found.untaken.append(Untaken(shown, "the native engine keeps its cache in the model's dtype"))
            elif (section, key) != ("model", "path"):
                found.put(section, key, value)
    found.untaken += [Untaken(shown, note.partition(": ")[2]) for note in parsed.notes]


def _value(values: list[str]) -> str | int | float | bool:
    if not values:
        return True
    text = values[0]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def _take_environment(found: Migrated, environment: dict[str, str], backend: str) -> None:
    for name, value in environment.items():
        numbers = [part.strip() for part in value.split(",")]
        if name in ("ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES") and all(map(str.isdecimal, numbers)):
            found.put("parallel", "devices", [int(part) for part in numbers])
            found.raw.setdefault("engine", {}).setdefault("device", "npu" if name.startswith("ASCEND") else "cuda")
        elif name == "OMP_NUM_THREADS" and value.isdecimal():
            found.put("engine", "num_threads", int(value))
        elif name == "VLLM_CPU_KVCACHE_SPACE" and value.isdecimal():
            found.put("engine", "kv_cache_memory", f"{value}GiB")
        elif name == "VLLM_API_KEY":
            found.untaken.append(Untaken(f"{name}=...", "secrets are in files: listen.api_key_file (`ascendd key`)"))
            found.todo.append("listen.api_key_file: write the key into a file, mode 0640, owner root, group ascendd")
        else:
            found.untaken.append(_untaken_variable(name, value, backend))


def _untaken_variable(name: str, value: str, backend: str) -> Untaken:
    shown = f"{name}=..." if is_secret(name) else f"{name}={value}"
    why = next((text for prefix, text in _SET_BY_DAEMON if name.startswith(prefix)), "")
    if not why and name.startswith("VLLM_"):
        why = (
            "write it with `systemctl edit ascendd@INSTANCE`" if backend == "vllm" else "the native engine has no such"
        )
    return Untaken(shown, why or "the daemon decides the environment of its engine")


def _say_differences(found: Migrated, model: str) -> None:
    """Keep what clients see as it was, and say where the defaults of the two differ."""
    if "name" not in found.raw["model"]:
        found.put("model", "name", model)  # vLLM's name for it where none was given
    listen = found.raw.setdefault("listen", {})
    if "host" not in listen:
        listen["host"] = "0.0.0.0"  # noqa: S104 - vLLM's default, which clients rely on
        found.todo.append("listen.host: vLLM listened on every interface; 127.0.0.1 is ascendd's default")
    if not model.startswith("/"):
        found.todo.append(
            f"model.path: {model} is no absolute path and nothing is downloaded; write the model's folder"
        )
    if "max_num_seqs" not in found.raw.get("engine", {}):
        found.todo.append("engine.max_num_seqs: 64 is ascendd's default; vLLM chose by the device")


def lines(found: Migrated) -> Iterator[str]:
    """Yield what an operator reads beside the file."""
    for entry in found.untaken:
        yield f"not taken over: {entry.what}: {entry.why}"
    for text in found.todo:
        yield f"to do: {text}"
