"""What an instance with `engine.backend: vllm` may say: settings that vLLM cannot do are refused by name. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ascendd.config.schema import InstanceConfig

# Each of vLLM's own options that a key of the instance file sets, or that ascendd decides, with what to write instead.
OWNED = {
    "host": "listen.host; vLLM itself listens where only ascendd reaches it",
    "port": "listen.port; vLLM itself listens where only ascendd reaches it",
    "uds": "engine.vllm.listen",
    "model": "model.path",
    "served-model-name": "model.name",
    "dtype": "model.dtype",
    "max-model-len": "model.max_model_len",
    "tensor-parallel-size": "parallel.tensor_parallel_size",
    "pipeline-parallel-size": "parallel.pipeline_parallel_size",
    "max-num-seqs": "engine.max_num_seqs",
    "max-num-batched-tokens": "engine.max_num_batched_tokens",
    "block-size": "engine.block_size",
    "num-gpu-blocks-override": "engine.max_num_blocks",
    "gpu-memory-utilization": "engine.gpu_memory_utilization",
    "kv-cache-memory-bytes": "engine.kv_cache_memory",
    "kv-cache-dtype": "engine.kv_cache_dtype",
    "enable-prefix-caching": "engine.enable_prefix_caching",
    "no-enable-prefix-caching": "engine.enable_prefix_caching",
    "enforce-eager": "engine.enforce_eager",
    "seed": "engine.seed",
    "enable-lora": "engine.enable_lora",
    "max-loras": "engine.max_loras",
    "max-lora-rank": "engine.max_lora_rank",
    "max-cpu-loras": "engine.max_cpu_loras",
    "lora-modules": "model.adapters",
    "api-key": "listen.api_key_file; a key on a command line is shown to everybody by ps",
    "ssl-keyfile": "no option: ascendd's API is in front of vLLM",
    "ssl-certfile": "no option: ascendd's API is in front of vLLM",
    "root-path": "no option: ascendd's API is in front of vLLM",
    "config": "the options themselves below engine.vllm.args",
    "disable-log-stats": "no option: a hang is told by vLLM's figures",
    "api-server-count": "no option: ascendd's API is in front of vLLM",
    "distributed-executor-backend": "cluster; on one host vLLM chooses",
    "headless": "no option: one vLLM serves one instance",
}
# Ranks that vLLM has kernels for.
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
_NAME = re.compile(r"[a-z][a-z0-9_-]*", re.ASCII)


def lora_rank(config: InstanceConfig) -> int:
    """Return the rank vLLM is started with: the next that it knows."""
    return next(rank for rank in _LORA_RANKS if rank >= config.engine.max_lora_rank)


def vllm_problems(config: InstanceConfig) -> Iterator[tuple[str, object, str, str]]:
    """Yield (path, value, rule, hint) for everything of `config` that its backend makes wrong."""
    engine = config.engine
    if engine.backend != "vllm":
        if engine.vllm is not None:
            yield "$.engine.vllm", engine.vllm.venv, "is for backend: vllm", "write engine.backend: vllm, or remove it"
        return
    if engine.vllm is None:
        yield "$.engine.vllm", None, "is required with backend: vllm", "add venv: and the folder of its environment"
        return
    if not engine.vllm.venv.startswith("/"):
        yield "$.engine.vllm.venv", engine.vllm.venv, "is not an absolute path", "write the folder that has bin/vllm"
    # Our own word for a dtype knows no fp8, so that one passes.
    for name in engine.vllm.args:
        bare = name.replace("_", "-")
        if not _NAME.fullmatch(name):
            yield f"$.engine.vllm.args.{name}", None, "is not the name of an option", "write it without dashes in front"
        elif bare in OWNED and not (bare == "kv-cache-dtype" and str(engine.vllm.args[name]).startswith("fp8")):
            yield f"$.engine.vllm.args.{name}", None, "is set by ascendd", f"write {OWNED[bare]}"
    yield from _cannot(config)


def _cannot(config: InstanceConfig) -> Iterator[tuple[str, object, str, str]]:
    engine, preprocess = config.engine, config.preprocess
    if engine.kv_cache_dtype not in ("auto", "bfloat16"):
        rule = "is not a KV cache dtype of vLLM"
        yield "$.engine.kv_cache_dtype", engine.kv_cache_dtype, rule, "write auto, or bfloat16"
    if config.model.adapter_root is not None:
        rule = "cannot be had with backend: vllm, which takes adapters at its start only"
        yield "$.model.adapter_root", config.model.adapter_root, rule, "name the adapters in model.adapters"
    if config.tuning.enabled:
        rule = "cannot be had with backend: vllm, whose batch is fixed at its start"
        yield "$.tuning.enabled", True, rule, "remove it, and choose engine.max_num_seqs"
    if config.listen.strict:
        rule = "cannot be had with backend: vllm, which decides itself which fields it knows"
        yield "$.listen.strict", True, rule, "remove it"
    if preprocess.truncate == "last" and preprocess.keep_last_tokens is None:
        rule = "needs a number with backend: vllm"
        yield "$.preprocess.keep_last_tokens", None, rule, "write how many of the last tokens of a prompt are kept"
