"""
Why vLLM ended, from the last lines of its log. Pure.

Wording: vLLM's and vllm-ascend's sources and public issues. The earliest specific line is the cause; what wraps it
(`Engine core initialization failed`) counts only where there is nothing better. The message has the line itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ascendd.errors import (
    AdapterInvalid,
    AscenddError,
    CollectiveTimeout,
    ConfigInvalid,
    DeviceEccError,
    DeviceOutOfMemory,
    DeviceUnavailable,
    EngineDead,
    GraphCaptureFailed,
    ListenFailed,
    ModelUnsupported,
    PlanDoesNotFit,
    PreflightFailed,
    WeightsCorrupt,
    WorkerLost,
)


@dataclass(frozen=True)
class _Sign:
    pattern: re.Pattern[str]
    error: type[AscenddError]
    remedy: str | None = None


def _sign(pattern: str, error: type[AscenddError], remedy: str | None = None) -> _Sign:
    return _Sign(re.compile(pattern), error, remedy)


_CACHE = "Raise engine.gpu_memory_utilization, or lower model.max_model_len or engine.max_num_seqs."
_OPTION = "Correct or remove that option in engine.vllm.args; `VENV/bin/vllm serve --help` lists what this vLLM knows."
_SPECIFIC = (
    _sign(r"vllm(?: serve)?: error: |unrecognized arguments:", ConfigInvalid, _OPTION),
    _sign(r"larger than the (?:maximum number of tokens that can be stored in"
          r"|available) KV cache", PlanDoesNotFit, _CACHE),
    _sign(r"No available memory for the cache blocks", PlanDoesNotFit, _CACHE),
    _sign(
        r"(?:Free memory on device|Available memory on node) .{0,120}is less than desired", DeviceUnavailable,
        "Another process holds memory of the device (`ascendd doctor`), or engine.gpu_memory_utilization is too high.",
    ),
    _sign(r"(?:CUDA|NPU|HIP|XPU) out of memory|OutOfMemoryError|NPUOutOfMemory"
          r"|DefaultCPUAllocator: (?:can't|not enough)",
          DeviceOutOfMemory),
    _sign(r"greater than the derived max_model_len|User-specified max_model_len", ConfigInvalid,
          "Lower model.max_model_len to what the model was made for."),
    _sign(r"Total number of attention heads .{0,40}must be divisible by tensor parallel size", ConfigInvalid,
          "Choose a parallel.tensor_parallel_size that divides the attention heads."),
    _sign(r"Model architectures? .{0,120}(?:not supported|failed to be inspected)"
          r"|trust_remote_code=True", ModelUnsupported,
          "Install a vLLM that knows this model into engine.vllm.venv."),
    _sign(r"SafetensorError|HeaderTooLarge|InvalidHeaderDeserialization|MetadataIncompleteBuffer", WeightsCorrupt),
    _sign(r"lora.{0,80}(?:does not exist|is not a valid|No adapter found)|LoRA rank \d+ is greater", AdapterInvalid),
    _sign(r"Address already in use", ListenFailed),
    _sign(r"lib(?:ascendcl|hccl|ascend_hal)\S*: cannot open shared object|No module named 'torch_npu'", PreflightFailed,
          "Source CANN's set_env.sh into /etc/ascendd/cann.env; install torch_npu into engine.vllm.venv."),
    _sign(r"uncorrectable ECC|multi[- ]bit ECC|HBM .{0,20}ECC", DeviceEccError),
    _sign(r"capture_begin|AclmdlRICapture|[Gg]raph capture failed", GraphCaptureFailed),
    _sign(r"RPC call to \w+ timed out|execute_model timed out|HCCL.{0,60}time ?out"
          r"|Watchdog caught collective", CollectiveTimeout),
    _sign(r"Worker ?[Pp]roc\w* .{0,60}(?:died|initialization failed)|ActorDiedError"
          r"|RayWorker.{0,60}died|node .{0,60}marked dead",
          WorkerLost),
)  # fmt: skip
_WRAPPING = (
    _sign(
        r"Engine core (?:proc\S*|process)? ?.{0,40}died unexpectedly|EngineDeadError|EngineCore encountered", EngineDead
    ),
    _sign(r"EngineCore failed to start|Engine core initialization failed", EngineDead),
)
_BROKEN_INSTALLATION = _sign(
    r"(?:\bImportError|ModuleNotFoundError): |Could not load this library: |OSError: \S+\.so[.\d]*: ",
    PreflightFailed,
    "The packages in engine.vllm.venv do not fit together: install again or remove the one that the line names; "
    "`VENV/bin/vllm --version` shows the same error until it is right.",
)
_ERROR_LINE = re.compile(r"\b\w*(?:Error|Exception|Exit|Fault)\b: |\bERROR\b|\bCRITICAL\b|: error: ")
_PREFIX = re.compile(r"^(?:\([^)]{1,60}\)\s*)?(?:(?:ERROR|INFO|WARNING|CRITICAL) [\d-]+ [\d:,.]+ \[[^\]]{1,80}\]\s*)?")
_MAX_CHARS = 400


def find_fault(lines: Iterable[str]) -> AscenddError | None:
    """Return the cause that `lines` show, oldest first, or None where they show none."""
    wrapper: AscenddError | None = None
    for line in lines:
        # What only warns, or was logged at a level for news, ended nothing.
        if re.search(r"\b(?:INFO|DEBUG|WARNING)\b \d", line):
            continue
        for sign in _SPECIFIC:
            if sign.pattern.search(line):
                return sign.error(f"vLLM: {_told(line)}", remedy=sign.remedy)
        if wrapper is None:
            for sign in _WRAPPING:
                if sign.pattern.search(line):
                    wrapper = sign.error(f"vLLM: {_told(line)}", remedy=sign.remedy)
    return wrapper


def find_broken_installation(lines: Iterable[str]) -> AscenddError | None:
    """
    Return what could not be imported, of the lines of a vLLM that ended before it had loaded; None where all could.

    The last such line counts: libraries try several names of a file, and optional packages, before they give up. Ask
    `find_fault` first. After the load a failed import is some request's, and the next start may well succeed.
    """
    told = [
        line
        for line in lines
        if not re.search(r"\b(?:INFO|DEBUG|WARNING)\b \d", line) and _BROKEN_INSTALLATION.pattern.search(line)
    ]
    if not told:
        return None
    return _BROKEN_INSTALLATION.error(f"vLLM: {_told(told[-1])}", remedy=_BROKEN_INSTALLATION.remedy)


def last_error(lines: Iterable[str]) -> str:
    """Return the last line that reads like an error, else the last one at all; empty where there is none."""
    kept = [line for line in lines if line.strip()]
    errors = [line for line in kept if _ERROR_LINE.search(line)]
    return _told((errors or kept or [""])[-1])


def _told(line: str) -> str:
    text = _PREFIX.sub("", line).strip()
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}..."
