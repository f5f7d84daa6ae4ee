"""Host memory: what the plan takes against what is free, in the control group of the service where it has a limit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

from ascendd.errors import AscenddError
from ascendd.host.files import HostFiles
from ascendd.host.memory import HostMemory as Memory
from ascendd.host.memory import read_memory
from ascendd.preflight.check import Check, CheckResult, Finding, Remedy, Verdict, conclude, conclude_with
from ascendd.preflight.context import CheckContext

INSUFFICIENT_HOST_MEMORY = "ASD-H04"
# Without a model: less than this and not even the daemon itself has room.
MINIMUM_BYTES = 1 << 30
# Field experience: 32 GB of host memory is comfortable for a 7B model in half precision, about twice its weights.
COMFORTABLE_SHARE = 2.0


@dataclass(frozen=True)
class Need:
    """Bytes of host memory that an instance takes, and how that comes together. `refusal`: the plan itself says no."""

    num_bytes: int
    parts: Dict[str, int]
    dtype: str
    refusal: Optional[AscenddError] = None


class HostMemory(Check):
    """The host has the memory that loading and serving take."""

    id = "host-memory"
    title = "Host memory"

    def run(self, context: CheckContext) -> CheckResult:
        """Read memory and limits, compute the need where a model is named."""
        service = context.service() if context.request.instance is not None else None
        memory = read_memory(context.files, None if service is None else service.control_group)
        if service is not None and service.memory_max_bytes is not None and memory.cgroup_limit_bytes is None:
            limit = service.memory_max_bytes  # the unit is not running, so its group is not there to be read
            memory = Memory(memory.total_bytes, memory.available_bytes, limit, limit, "MemoryMax= of the unit")
        is_running = service is not None and service.is_active
        return judge(memory, _need(context, memory), on_device=_on_device(context), is_running=is_running)


def judge(memory: Memory, need: Optional[Need], *, on_device: bool, is_running: bool = False) -> CheckResult:
    """Decide; while the instance itself runs, its own use explains what is missing now."""
    evidence: Dict[str, Any] = {
        "total_bytes": memory.total_bytes,
        "available_bytes": memory.available_bytes,
        "cgroup_limit_bytes": memory.cgroup_limit_bytes,
        "cgroup_available_bytes": memory.cgroup_available_bytes,
        "cgroup": memory.cgroup_path,
        "needed_bytes": None if need is None else need.num_bytes,
        "parts": {} if need is None else need.parts,
        "dtype": None if need is None else need.dtype,
    }
    usable, ceiling = memory.usable_bytes, memory.ceiling_bytes
    limited = memory.cgroup_available_bytes is not None and memory.cgroup_available_bytes < memory.available_bytes
    where = f" in {memory.cgroup_path}" if limited else ""
    if need is None:
        if usable < MINIMUM_BYTES:
            text = "Free memory, or raise MemoryMax= of the unit."
            return conclude_with(_finding(Verdict.WARN, f"only {_gib(usable)} free{where}", text), evidence)
        return conclude([], f"{_gib(usable)} free{where}; no model to compare with", evidence)
    if is_running and ceiling >= need.num_bytes:
        return conclude([], f"the instance runs; it takes {_gib(need.num_bytes)} of {_gib(ceiling)}", evidence)
    if need.refusal is not None:
        remedy = Remedy(need.refusal.code, need.refusal.remedy)
        return conclude_with(Finding(Verdict.FAIL, need.refusal.message, remedy), evidence)
    spoken = " + ".join(f"{_gib(size)} {name}" for name, size in need.parts.items() if size)
    if usable < need.num_bytes:
        said = f"{_gib(need.num_bytes)} needed ({spoken}), {_gib(usable)} free{where} of {_gib(ceiling)}"
        text = "Free memory, raise MemoryMax= of the unit, or choose a smaller model, dtype or KV cache."
        return conclude_with(_finding(Verdict.FAIL, said, text), evidence)
    weights = need.parts.get("weights", 0)
    if on_device and ceiling < weights * COMFORTABLE_SHARE:
        said = f"{_gib(ceiling)} is less than twice the {_gib(weights)} of weights; loading will be slow"
        return conclude_with(
            _finding(Verdict.WARN, said, "More host memory lets the page cache hold the model."), evidence
        )
    return conclude([], f"{_gib(need.num_bytes)} needed ({spoken}, {need.dtype}), {_gib(usable)} free{where}", evidence)


def _on_device(context: CheckContext) -> bool:
    """Tell whether weights and KV cache live in the memory of an accelerator."""
    return context.target.is_npu or (context.config is not None and context.config.engine.device == "cuda")


def _need(context: CheckContext, memory: Memory) -> Optional[Need]:
    """Compute the need from the plan; None without a model that can be read (the artefact check says why)."""
    if context.model_path is None:
        return None
    try:
        from ascendd.config.model_facts import read_model_facts
        from ascendd.config.resolve import check_context_length

        facts = read_model_facts(Path(context.model_path))
        config = context.config or _default_config(context.model_path)
        check_context_length(config, facts)
    except (ImportError, AscenddError):
        return None
    if _on_device(context):
        return _device_need(config, facts)
    try:
        from ascendd.artefact.weight_count import count_rank_weights

        elements = count_rank_weights(Path(context.model_path), facts, *_parallel_sizes(config))
    except AscenddError:
        elements = None  # the artefact check names a file that is broken
    return _cpu_need(config, facts, memory, fast_dtypes(context.files), elements)


def _device_need(config: Any, facts: Any) -> Need:
    """Weights pass through host memory on their way to the devices: the model and one layer of it."""
    from ascendd.config.plan import DTYPE_BYTES

    dtype = facts.dtype if config.model.dtype == "auto" else config.model.dtype
    weights = facts.num_parameters * DTYPE_BYTES.get(dtype, 2)
    parts = {"weights": weights, "one layer": weights // facts.num_layers}
    return Need(sum(parts.values()), parts, dtype)


def _cpu_need(config: Any, facts: Any, memory: Memory, dtypes: Tuple[str, ...], elements: Optional[int] = None) -> Need:
    """Everything lives in host memory; the engine's own plan decides."""
    from ascendd.config.plan import CPU_RESERVE_BYTES, DTYPE_BYTES, DeviceFacts, weights_bytes_per_rank
    from ascendd.config.resolve import resolve, resolve_dtype

    device = DeviceFacts(
        kind="cpu", name="CPU", total_bytes=memory.ceiling_bytes, free_bytes=memory.usable_bytes, fast_dtypes=dtypes
    )
    tp_size, pp_size = _parallel_sizes(config)
    num_ranks = tp_size * pp_size
    dtype = resolve_dtype(config.model.dtype, facts, device)
    planned = weights_bytes_per_rank(facts, dtype, tp_size, pp_size)
    weights = num_ranks * (planned if elements is None else elements * DTYPE_BYTES[dtype])
    try:
        plan = resolve(config, facts, device, weight_elements=elements).plan
    except AscenddError as error:
        parts = {"weights": weights, "reserve": CPU_RESERVE_BYTES * num_ranks}
        return Need(sum(parts.values()), parts, dtype, refusal=error)
    parts = {
        "weights": plan.weights_bytes * num_ranks,
        "KV cache": plan.kv_bytes * num_ranks,
        "reserve": CPU_RESERVE_BYTES * num_ranks,
    }
    return Need(sum(parts.values()), parts, dtype)


def _parallel_sizes(config: Any) -> Tuple[int, int]:
    return config.parallel.tensor_parallel_size, config.parallel.pipeline_parallel_size


def fast_dtypes(files: HostFiles) -> Tuple[str, ...]:
    """Return the dtypes that this CPU multiplies natively, first choice first; the engine decides by the same flags."""
    words = set((files.read_if_possible("/proc/cpuinfo") or "").split())
    return ("float32", "bfloat16") if words & {"avx512_bf16", "amx_bf16"} else ("float32",)


def _default_config(model_path: str) -> Any:
    from ascendd.config.schema import InstanceConfig, ModelSection

    return InstanceConfig(model=ModelSection(path=model_path))


def _finding(verdict: Verdict, said: str, text: str) -> Finding:
    commands = (
        "grep -E 'MemTotal|MemAvailable' /proc/meminfo",
        "systemctl show ascendd@NAME -p MemoryMax -p MemoryCurrent",
    )
    return Finding(verdict, said, Remedy(INSUFFICIENT_HOST_MEMORY, text, commands))


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
