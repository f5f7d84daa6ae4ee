"""
InstanceConfig: what a human wrote, nothing computed. No I/O here; rules across keys are in config.validate.

Every field's comment-style docstring ends up in packaging/example.yaml by hand and in packaging/schema.json by machine;
a test decodes the one and compares the other.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ascendd.config.dtype import canonical_dtype

Port = Annotated[int, Meta(ge=0, le=65535)]
Parallel = Annotated[int, Meta(ge=1, le=1024)]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
# Tokens or blocks: their indices are 32-bit numbers in the kernels.
Size = Annotated[int, Meta(ge=1, le=2**31 - 1)]
# Up to a year: longer is a slip of the pen, and timers overflow far beyond it.
Seconds = Annotated[float, Meta(ge=0, le=31_536_000)]
Timeout = Annotated[float, Meta(gt=0, le=31_536_000)]
Fraction = Annotated[float, Meta(gt=0, le=1)]
# Bytes: an integer, or text such as `4GiB`, `512MB` (config.quantity.parse_bytes).
Bytes = int | str

# The short spellings become the long ones as the section is made (Section._canonical).
DType = Literal["auto", "float32", "float16", "bfloat16", "fp32", "fp16", "bf16", "float", "half"]
WeightDType = Literal["auto", "float32", "float16", "int8", "fp32", "fp16"]
DeviceKind = Literal["auto", "cpu", "npu", "cuda"]
BlockSize = Literal[16, 32, 64, 128]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections: immutable, and an unknown key is an error."""

    def _canonical(self, key: str) -> None:
        """Bring the dtype `key` to its one canonical spelling."""
        msgspec.structs.force_setattr(self, key, canonical_dtype(getattr(self, key)))


class TlsSection(Section, frozen=True):
    """Certificate and key of a listener as PEM files, read anew on reload; the key without a password."""

    # The server's own certificate first, then the intermediate ones.
    cert_file: str
    # Mode 0640, owner root, group of the service.
    key_file: str


class ListenSection(Section, frozen=True):
    """The address of the OpenAI-compatible API. Port 0 takes a free one (the log names it)."""

    host: str = "127.0.0.1"
    port: Port = 8000
    # One key a line; `#` starts a comment. Without it every client on the address is served.
    api_key_file: str | None = None
    max_body_bytes: Bytes = "8MiB"
    # Whether fields of a request that nobody knows are refused instead of ignored.
    strict: bool = False
    # Serve HTTPS instead of HTTP.
    tls: TlsSection | None = None


class MetricsSection(Section, frozen=True):
    """The address of /metrics: a listener and a process of its own. Open by design, so loopback by default."""

    enabled: bool = True
    host: str = "127.0.0.1"
    port: Port = 9475
    # Scrapes a second, over all scrapers; those beyond are answered 429.
    max_scrapes_per_s: Annotated[float, Meta(ge=1, le=1000)] = 10.0


class AdapterEntry(Section, frozen=True):
    """A LoRA adapter in PEFT's folder format, loaded at start; `name` is how requests ask for it."""

    name: str
    path: str


class ModelSection(Section, frozen=True):
    """The model: a folder written by `ascendd convert`, or a Hugging Face folder."""

    path: str
    # Name in the API; default: the folder's name.
    name: str | None = None
    dtype: DType = "auto"
    max_model_len: Size | None = None
    adapters: list[AdapterEntry] = []
    # The folder below which adapters may be loaded at run time; without it none may.
    adapter_root: str | None = None

    def __post_init__(self) -> None:
        self._canonical("dtype")


class ParallelSection(Section, frozen=True):
    """How the model is spread over devices."""

    tensor_parallel_size: Parallel = 1
    pipeline_parallel_size: Parallel = 1
    # Logical device ids; default: the first tp x pp ones.
    devices: list[Annotated[int, Meta(ge=0, le=1023)]] | None = None


class VllmSection(Section, frozen=True):
    """The vLLM that serves instead of the native engine, from a virtual environment of its own."""

    # The folder of that environment; its bin/vllm is what is started.
    venv: str
    # unix: a socket in a folder that only the service's user can enter. loopback: for a vLLM without --uds.
    listen: Literal["unix", "loopback"] = "unix"
    # Further options of `vllm serve` by their long names without dashes; true stands for an option without a value.
    args: dict[str, str | int | float | bool] = {}


class EngineSection(Section, frozen=True):
    """Batching and KV cache. One of kv_cache_memory, max_num_blocks, gpu_memory_utilization at most; all per device."""

    # native: ascendd's own engine. vllm: a `vllm serve` of `engine.vllm`, supervised in its place.
    backend: Literal["native", "vllm"] = "native"
    vllm: VllmSection | None = None
    device: DeviceKind = "auto"
    max_num_seqs: Annotated[int, Meta(ge=1, le=65_536)] = 64
    # Tokens in one step; default 512 on a CPU, 2048 elsewhere.
    max_num_batched_tokens: Size | None = None
    # Tokens in a KV block; default 16, on NPU 128. The device says which of these its kernels take.
    block_size: BlockSize | None = None
    kv_cache_dtype: DType = "auto"
    # What projections are kept as on a CPU, which computes them in float32; auto: as model.dtype says.
    weight_dtype: WeightDType = "auto"
    kv_cache_memory: Bytes | None = None
    max_num_blocks: Size | None = None
    gpu_memory_utilization: Fraction | None = None
    enable_prefix_caching: bool = True
    # Graph mode is on by default where the device has it; true turns it off.
    enforce_eager: bool = False
    # CPU threads of the engine; default: the cores this process may use.
    num_threads: Parallel | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    # LoRA; default: on where model.adapters or model.adapter_root is set.
    enable_lora: bool | None = None
    # Different adapters in one step.
    max_loras: Annotated[int, Meta(ge=1, le=128)] = 8
    max_lora_rank: Annotated[int, Meta(ge=1, le=64)] = 64
    # Adapters in host memory; the least recently used one makes room for another and is read again when asked for.
    max_cpu_loras: Annotated[int, Meta(ge=1, le=128)] = 16

    def __post_init__(self) -> None:
        self._canonical("kv_cache_dtype")
        self._canonical("weight_dtype")


class AdmissionSection(Section, frozen=True):
    """What is taken in."""

    # Requests that may wait for a place in the batch; more are answered 429.
    max_queue: Count = 256
    request_timeout_s: Timeout = 600.0
    # How long a request without a token waits for an engine that is being restarted, then 503; 0 answers 503 at once.
    restart_wait_s: Seconds = 30.0


class PreprocessSection(Section, frozen=True):
    """
    What is done to prompts on the server; every switch is off unless written. Token ids are taken as they come.

    What was removed is told in usage.prompt_tokens_details.removed_tokens and in /metrics.
    """

    # Runs of white space: keep them, collapse them within lines, or collapse all, indentation too.
    whitespace: Literal["keep", "inline", "all"] = "keep"
    # Tags and comments go, entities become characters; only elements of HTML count.
    strip_html: bool = False
    # A system message whose text an earlier one has is left out.
    drop_repeated_system: bool = False
    # Prompts that are too long: refuse them, or keep their last tokens (and the system part at their head).
    truncate: Literal["error", "last"] = "error"
    # With truncate: last; default: what the context leaves beside max_tokens.
    keep_last_tokens: Size | None = None
    # A system prompt at the head of every chat, the same for all, so that the prefix cache serves it.
    system_prompt: str | None = None
    # Where the client sends one too: put ours before it, put ours in its place, or leave the client's alone.
    system_prompt_mode: Literal["prepend", "replace", "default"] = "prepend"


class HealthSection(Section, frozen=True):
    """When a child counts as hung."""

    # One step of the engine; longer for one whose tokens took longer lately.
    step_deadline_s: Timeout = 120.0
    # Loading without any progress.
    load_deadline_s: Timeout = 600.0
    self_test_timeout_s: Timeout = 60.0
    # How long /readyz waits for the token that it has the engine compute.
    probe_timeout_s: Timeout = 5.0
    # From one look at what can change on the host (the live checks of `ascendd doctor`) to the next.
    checks_interval_s: Timeout = 300.0


class RecoverySection(Section, frozen=True):
    """How what dies is restarted: exponential backoff, at most `max_restarts` in `window_s`, then it fails."""

    max_restarts: Count = 5
    window_s: Timeout = 600.0
    # Default: 1 and 60 s on CPU, 10 and 300 s elsewhere.
    backoff_min_s: Seconds | None = None
    backoff_max_s: Seconds | None = None
    drain_timeout_s: Seconds = 30.0
    # Leave a chip out whose fault repeats or stays; go on with a smaller tensor parallel size where the model has one.
    allow_smaller_parallel: bool = False
    # Reset a chip that reports a fault, or whose fault a reset cures, with its whole ring once nobody has a chip of it.
    reset_chips: bool = False
    # How long the devices of an engine that ended may be held by somebody before the instance fails.
    release_timeout_s: Timeout = 120.0
    # Whether `ascendd drill` may break this instance to show that it recovers; never where users depend on it.
    drills: bool = False


class LogSection(Section, frozen=True):
    """Logs go to standard error (the journal), or to `file`, rotated by a process of its own."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"
    file: str | None = None
    max_bytes: Bytes = "100MB"
    backups: Annotated[int, Meta(ge=0, le=100)] = 5
    # Age at which the file is rotated, too; 0 never.
    max_age_s: Seconds = 604_800.0
    # Rotated files become FILE.N.gz.
    compress: bool = True
    # Disk space of log.file, rotated ones and the vendor's logs of this instance together; the oldest go.
    budget: Bytes = "2GB"
    # Seconds between lines with throughput and queue; 0 turns them off.
    stats_interval_s: Seconds = 30.0


class TuningSection(Section, frozen=True):
    """
    Self-tuning: the batch follows the load, without a restart, between min_num_seqs and engine.max_num_seqs.

    `queue` moves it by the number of waiting sequences alone; `latency` finds the largest that keeps both goals.
    """

    enabled: bool = False
    policy: Literal["queue", "latency"] = "latency"
    # Default: 32, or engine.max_num_seqs where that is less.
    min_num_seqs: Annotated[int, Meta(ge=1, le=65_536)] | None = None
    interval_s: Annotated[float, Meta(ge=1, le=3600)] = 5.0
    # Goals of `latency`: p95 to the first token, and the mean between two tokens.
    first_token_goal_s: Timeout = 2.5
    inter_token_goal_s: Timeout = 0.05
    # Marks of `queue`: more sequences than the first waiting raise, fewer than the second lower.
    raise_above: Count = 24
    lower_below: Count = 8


class TracingSection(Section, frozen=True):
    """OpenTelemetry: a trace of each request for a collector, without prompts or answers; off without an endpoint."""

    # OTLP over HTTP, such as http://127.0.0.1:4318/v1/traces.
    endpoint: str | None = None
    # Share of the requests that come without a trace of their client; those with one are kept as the client says.
    sample_ratio: Annotated[float, Meta(ge=0, le=1)] = 1.0


class CostSection(Section, frozen=True):
    """What tokens cost: power x price plus the hardware over its life, all in one currency; off without a price."""

    price_per_kwh: Annotated[float, Meta(ge=0, le=1_000_000)] | None = None
    # Three letters, as ISO 4217 has them.
    currency: Annotated[str, Meta(pattern="^[A-Z]{3}$")] = "EUR"
    # Of what serves this instance, written off over amortisation_years.
    hardware_price: Annotated[float, Meta(ge=0, le=1e12)] = 0.0
    amortisation_years: Annotated[float, Meta(gt=0, le=100)] = 4.0
    # Default: measured, else estimated; docs/METRICS.md says from what.
    power_w: Annotated[float, Meta(ge=0, le=1_000_000)] | None = None
    # Of the host around the chips.
    base_power_w: Annotated[float, Meta(ge=0, le=1_000_000)] = 0.0


class ClusterSection(Section, frozen=True):
    """Hosts that serve one model together: vLLM over Ray, whole layers in a host, stages of layers over hosts."""

    # Address of the host whose instance serves; the same on every host.
    head: str
    # This host's address, on `interface`; that of `head` makes this host the head.
    address: str
    interface: str
    # Hosts that must have joined before vLLM is started; each is a stage of the pipeline.
    nodes: Annotated[int, Meta(ge=2, le=64)]
    # The cluster's token, the same on every host. Default: /etc/ascendd/keys/NAME.ray, which systemd reads as root.
    token_file: str | None = None
    # Of the head's Ray, the same on every host.
    port: Annotated[int, Meta(ge=1, le=65535)] = 6379


class InstanceConfig(Section, frozen=True):
    """One instance: /etc/ascendd/instances/<name>.yaml."""

    model: ModelSection
    listen: ListenSection = ListenSection()
    metrics: MetricsSection = MetricsSection()
    parallel: ParallelSection = ParallelSection()
    engine: EngineSection = EngineSection()
    admission: AdmissionSection = AdmissionSection()
    preprocess: PreprocessSection = PreprocessSection()
    health: HealthSection = HealthSection()
    recovery: RecoverySection = RecoverySection()
    tuning: TuningSection = TuningSection()
    tracing: TracingSection = TracingSection()
    cost: CostSection = CostSection()
    log: LogSection = LogSection()
    cluster: ClusterSection | None = None
