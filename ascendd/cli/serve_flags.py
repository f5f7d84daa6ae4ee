"""
The flags of `ascendd serve` as data: vLLM's familiar names, each with the key it sets, or why it is refused.

What follows a refused or unknown flag is never repeated in a message: it may be a key.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ascendd.cli.adapter_arguments import read_adapters
from ascendd.config.dtype import canonical_dtype
from ascendd.errors import UsageError


class Kind(enum.Enum):
    """What follows a flag."""

    TEXT = "TEXT"
    INT = "N"
    NUMBER = "NUMBER"
    BYTES = "SIZE"
    INTS = "N,N"
    ON = ""  # nothing: the flag alone means true
    OFF = "off"  # nothing: the flag alone means false
    SWITCH = "[true|false]"  # nothing, or one of the words
    ADAPTERS = "NAME=PATH..."  # one or more; JSON objects with name and path, too


@dataclass(frozen=True)
class Flag:
    """A flag that sets the key `section.key` of the configuration; `fixed` is its value where none follows."""

    names: tuple[str, ...]
    section: str
    key: str
    kind: Kind
    help: str
    fixed: Any = None


@dataclass(frozen=True)
class Refused:
    """A flag of other servers that is not taken, and why; a name that ends in `*` covers all that begin so."""

    names: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Noted:
    """A flag that is accepted and changes nothing, and why."""

    names: tuple[str, ...]
    note: str


FLAGS = (
    Flag(("--host",), "listen", "host", Kind.TEXT, "address of the API; 0.0.0.0 for all interfaces"),
    Flag(("--port",), "listen", "port", Kind.INT, "port of the API"),
    Flag(("--api-key-file",), "listen", "api_key_file", Kind.TEXT, "file with one API key a line"),
    Flag(("--ssl-certfile",), "listen", "tls.cert_file", Kind.TEXT, "PEM file with the certificate: serve HTTPS"),
    Flag(("--ssl-keyfile",), "listen", "tls.key_file", Kind.TEXT, "PEM file with its private key"),
    Flag(("--served-model-name",), "model", "name", Kind.TEXT, "name of the model in the API"),
    Flag(("--dtype",), "model", "dtype", Kind.TEXT, "auto, float16 (fp16), bfloat16 (bf16) or float32 (fp32)"),
    Flag(("--max-model-len",), "model", "max_model_len", Kind.INT, "longest prompt plus answer, in tokens"),
    Flag(("--device",), "engine", "device", Kind.TEXT, "auto, npu, cpu or cuda"),
    Flag(("--max-num-seqs",), "engine", "max_num_seqs", Kind.INT, "sequences in one batch"),
    Flag(("--max-num-batched-tokens",), "engine", "max_num_batched_tokens", Kind.INT, "tokens in one step"),
    Flag(("--block-size",), "engine", "block_size", Kind.INT, "tokens in a KV block: 16, 32, 64 or 128"),
    Flag(
        ("--max-num-blocks", "--num-gpu-blocks", "--num-gpu-blocks-override"),
        "engine",
        "max_num_blocks",
        Kind.INT,
        "KV blocks per device",
    ),
    Flag(
        ("--kv-cache-memory", "--kv-cache-memory-bytes"),
        "engine",
        "kv_cache_memory",
        Kind.BYTES,
        "size of the KV cache per device, such as 4GiB",
    ),
    Flag(
        ("--gpu-memory-utilization",),
        "engine",
        "gpu_memory_utilization",
        Kind.NUMBER,
        "share of the device's memory to use, 0 to 1",
    ),
    Flag(
        ("--kv-cache-dtype",), "engine", "kv_cache_dtype", Kind.TEXT, "dtype of the KV cache: auto, fp16, bf16 or fp32"
    ),
    Flag(
        ("--weight-dtype",),
        "engine",
        "weight_dtype",
        Kind.TEXT,
        "what a CPU keeps projections as: auto, fp32, fp16 or int8",
    ),
    Flag(("--enable-prefix-caching",), "engine", "enable_prefix_caching", Kind.SWITCH, "reuse the KV of equal prompts"),
    Flag(("--no-enable-prefix-caching",), "engine", "enable_prefix_caching", Kind.OFF, "compute every prompt anew"),
    Flag(("--enforce-eager",), "engine", "enforce_eager", Kind.SWITCH, "run without graphs"),
    Flag(("--seed",), "engine", "seed", Kind.INT, "seed of requests that bring none"),
    Flag(("--enable-lora",), "engine", "enable_lora", Kind.SWITCH, "serve adapters; on where any are given"),
    Flag(("--lora-modules",), "model", "adapters", Kind.ADAPTERS, "LoRA adapters in PEFT's folder format"),
    Flag(("--adapter-root",), "model", "adapter_root", Kind.TEXT, "folder below which adapters are loaded over HTTP"),
    Flag(("--max-loras",), "engine", "max_loras", Kind.INT, "different adapters in one step"),
    Flag(("--max-lora-rank",), "engine", "max_lora_rank", Kind.INT, "highest rank of an adapter, up to 64"),
    Flag(("--max-cpu-loras",), "engine", "max_cpu_loras", Kind.INT, "adapters in host memory, up to 128"),
    Flag(("--num-threads",), "engine", "num_threads", Kind.INT, "CPU threads of the engine"),
    Flag(
        ("--tensor-parallel-size", "-tp"), "parallel", "tensor_parallel_size", Kind.INT, "devices a layer is cut over"
    ),
    Flag(("--pipeline-parallel-size", "-pp"), "parallel", "pipeline_parallel_size", Kind.INT, "stages of layers"),
    Flag(("--devices",), "parallel", "devices", Kind.INTS, "logical device ids, such as 0,1"),
    Flag(("--max-queue",), "admission", "max_queue", Kind.INT, "requests that may wait; more get 429"),
    Flag(("--request-timeout",), "admission", "request_timeout_s", Kind.NUMBER, "seconds a request may take"),
    Flag(("--drain-timeout",), "recovery", "drain_timeout_s", Kind.NUMBER, "seconds open requests get at the stop"),
    Flag(("--metrics-port",), "metrics", "port", Kind.INT, "port of /metrics"),
    Flag(("--log-level", "--uvicorn-log-level"), "log", "level", Kind.TEXT, "debug, info, warning or error"),
    Flag(("--log-file",), "log", "file", Kind.TEXT, "log to this file instead of standard error"),
    Flag(("--log-rotation-size",), "log", "max_bytes", Kind.BYTES, "size at which the log file is rotated"),
    Flag(("--log-rotation-count",), "log", "backups", Kind.INT, "rotated log files that are kept"),
    Flag(("--disable-log-stats",), "log", "stats_interval_s", Kind.ON, "no lines with throughput", fixed=0.0),
)

_NO_SPECULATION = "speculative decoding is not in this version"
_NO_RAY = "ranks are processes of this daemon, started by it; nothing else executes them"
_NO_TLS = "only --ssl-certfile and --ssl-keyfile are; the rest of TLS is as safe as OpenSSL's defaults make it"
_OWN_MODEL_FILES = "the model folder alone decides; change the file in it"
_NO_MULTIMODAL = "only text models are served in this version"
_NO_TOOLS = "tool calls and reasoning are always told, in the form that the model's template teaches"
_NO_CORS = "cross-origin headers are the work of a reverse proxy in front of the instance"

REFUSED = (
    Refused(
        ("--api-key", "--api-keys"), "a key on the command line is shown to everybody by ps; give --api-key-file FILE"
    ),
    Refused(("--trust-remote-code",), "the engine runs its own model code only, never code from a model folder"),
    Refused(("--lora-dtype", "--lora-extra-vocab-size"), "adapters are kept in the dtype of the model, tokens are its"),
    Refused(("--fully-sharded-loras",), "adapters are cut like the layers that they belong to"),
    Refused(("--enable-prompt-adapter", "--max-prompt-adapter*"), "prompt adapters are not in this version"),
    Refused(("--swap-space",), "preempted sequences are computed again, never swapped to host memory"),
    Refused(("--cpu-offload-gb",), "weights stay on the device; choose a smaller dtype or more devices"),
    Refused(("--quantization", "-q"), "quantized weights are not served in this version; choose a --dtype"),
    Refused(("--load-format",), "safetensors folders are loaded as they are; `ascendd convert` takes other formats"),
    Refused(("--worker-use-ray", "--distributed-executor-backend", "--ray-*", "--engine-use-ray"), _NO_RAY),
    Refused(("--speculative-*", "--num-speculative-tokens", "--num-lookahead-slots"), _NO_SPECULATION),
    Refused(
        ("--data-parallel-*", "-dp"), "run one instance per replica, each with its own port, behind a load balancer"
    ),
    Refused(("--enable-expert-parallel",), "expert parallelism is not in this version"),
    Refused(("--ssl-*",), _NO_TLS),
    Refused(("--allowed-*", "--allow-credentials"), _NO_CORS),
    Refused(("--root-path", "--middleware", "--uds"), "the API is served at /v1 of --host and --port only"),
    Refused(("--tokenizer", "--tokenizer-*", "--skip-tokenizer-init"), _OWN_MODEL_FILES),
    Refused(("--revision", "--code-revision", "--download-dir", "--hf-*"), "nothing is downloaded; MODEL is a folder"),
    Refused(("--chat-template", "--chat-template-*", "--response-role", "--config-format"), _OWN_MODEL_FILES),
    Refused(("--generation-config", "--override-generation-config", "--rope-*"), _OWN_MODEL_FILES),
    Refused(("--enable-auto-tool-choice", "--tool-*", "--reasoning-*", "--enable-reasoning"), _NO_TOOLS),
    Refused(("--limit-mm-*", "--mm-*", "--image-*", "--disable-mm-*"), _NO_MULTIMODAL),
    Refused(("--task", "--runner", "--convert", "--pooler-*"), "only text generation is served"),
    Refused(
        ("--guided-decoding-*", "--structured-outputs-*"),
        "there is one engine of guided decoding; a request says in its body what it wants",
    ),
    Refused(("--compilation-config", "-O"), "graphs are on where the device has them; --enforce-eager turns them off"),
    Refused(("--max-seq-len-to-capture", "--cudagraph-*", "--cuda-graph-*"), "the engine chooses the graph sizes"),
    Refused(
        ("--scheduling-policy", "--scheduler-*", "--num-scheduler-steps", "--preemption-mode"), "there is one scheduler"
    ),
    Refused(("--no-enable-chunked-prefill",), "prompts are always computed in chunks of --max-num-batched-tokens"),
    Refused(("--additional-config", "--model-loader-extra-config"), "settings have names of their own here"),
    Refused(
        ("--otlp-*", "--collect-detailed-traces"),
        "traces go by OTLP over HTTP to tracing.endpoint of an instance file, such as http://127.0.0.1:4318/v1/traces",
    ),
    Refused(
        ("--enable-log-requests", "--max-log-len", "--enable-request-id-headers"),
        "prompts and answers are never logged",
    ),
    Refused(("--api-server-count", "--config"), "not a flag of serve; `ascendd run --config FILE` takes a file"),
    Refused(("--log-rotation-*",), "log files are rotated by size: --log-rotation-size and --log-rotation-count"),
    Refused(("--calculate-kv-scales", "--kv-transfer-*", "--kv-events-*"), "the KV cache stays in this instance"),
)

NOTED = (
    Noted(("--disable-custom-all-reduce",), "there is no custom all-reduce to disable"),
    Noted(("--enable-chunked-prefill",), "prompts are always computed in chunks"),
    Noted(("--disable-log-requests", "--no-enable-log-requests"), "prompts and answers are never logged"),
    Noted(("--use-v2-block-manager",), "there is one block manager"),
    Noted(("--disable-frontend-multiprocessing",), "API and engine are always processes of their own"),
)

_WORDS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
MODEL_FLAGS = ("--model",)


@dataclass
class ServeArguments:
    """What a command line asks for: plain data for config.load.convert, and notes to print."""

    raw: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def set(self, section: str, key: str, value: Any) -> None:
        """Set one key, `part.key` for one of a part of the section; the last of equal flags wins."""
        target = self.raw.setdefault(section, {})
        part, _, name = key.rpartition(".")
        (target.setdefault(part, {}) if part else target)[name] = value


def parse(args: Sequence[str]) -> ServeArguments:
    """Turn a command line into plain configuration data. Raises UsageError for anything that is not understood."""
    found = ServeArguments()
    rest = list(args)
    while rest:
        arg = rest.pop(0)
        if not arg.startswith("-") or arg == "-":
            if "path" in found.raw.get("model", {}):
                raise UsageError("serve takes one MODEL; a second one was given")
            found.set("model", "path", arg)
            continue
        name, has_value, value = arg.partition("=")
        name = name.replace("_", "-")
        if name in MODEL_FLAGS:
            found.set("model", "path", _value(name, value if has_value else None, rest))
            continue
        flag = _by_name(FLAGS, name)
        if flag is not None:
            has_model = "path" in found.raw.get("model", {})
            found.set(flag.section, flag.key, _convert(flag, name, value if has_value else None, rest, has_model))
            continue
        noted = _by_name(NOTED, name)
        if noted is None:
            raise _not_taken(name)
        found.notes.append(f"{name} changes nothing: {noted.note}")
    if "path" not in found.raw.get("model", {}):
        raise UsageError("serve needs the folder of a model: ascendd serve MODEL [flags]")
    return found


def known_names() -> list[str]:
    """Return every flag that is accepted."""
    return [name for entry in (*FLAGS, *NOTED) for name in entry.names]


def _by_name(table: Sequence[Any], name: str) -> Any:
    return next((entry for entry in table if name in entry.names), None)


def _not_taken(name: str) -> UsageError:
    for refused in REFUSED:
        if any(name == n or (n.endswith("*") and name.startswith(n[:-1])) for n in refused.names):
            return UsageError(f"{name} is not taken: {refused.reason}", remedy=f"Remove {name}.", flag=name)
    near = difflib.get_close_matches(name, known_names(), n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return UsageError(f"{name} is not a flag of serve{hint}", remedy="Run `ascendd serve --help`.", flag=name)


def _value(name: str, given: str | None, rest: list[str]) -> str:
    if given is not None:
        return given
    if not rest or (rest[0].startswith("--") and len(rest[0]) > 2):
        raise UsageError(f"{name} needs a value")
    return rest.pop(0)


def _convert(flag: Flag, name: str, given: str | None, rest: list[str], has_model: bool) -> Any:
    if flag.kind in (Kind.ON, Kind.OFF):
        if given is not None:
            raise UsageError(f"{name} takes no value")
        return flag.fixed if flag.kind is Kind.ON else False
    if flag.kind is Kind.SWITCH:
        return _switch(name, given, rest, has_model)
    if flag.kind is Kind.ADAPTERS:
        return read_adapters(name, _value(name, given, rest), rest)
    text = _value(name, given, rest)
    try:
        if flag.kind is Kind.INT:
            return int(text)
        if flag.kind is Kind.NUMBER:
            return float(text)
        if flag.kind is Kind.INTS:
            return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{name} needs {_NEEDS[flag.kind]}") from None
    if flag.kind is Kind.BYTES:
        return int(text) if text.isdecimal() else text
    return canonical_dtype(text) if flag.key in ("dtype", "kv_cache_dtype", "weight_dtype") else text


_NEEDS = {Kind.INT: "a whole number", Kind.NUMBER: "a number", Kind.INTS: "whole numbers with commas between them"}


def _switch(name: str, given: str | None, rest: list[str], has_model: bool) -> bool:
    if given is not None:
        if given.lower() not in _WORDS:
            raise UsageError(f"{name} is true or false")
        return _WORDS[given.lower()]
    if rest and rest[0].lower() in ("true", "false"):
        return _WORDS[rest.pop(0).lower()]
    if has_model and rest and not rest[0].startswith("-"):
        raise UsageError(f"{name} is true or false")
    return True
