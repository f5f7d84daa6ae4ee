"""
The command line and environment of `vllm serve` for an InstanceConfig. Pure.

Names of options and variables: https://docs.vllm.ai/en/stable/cli/serve/ and .../configuration/env_vars/. What of our
settings vLLM cannot do is refused before this (config.vllm_rules).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ascendd.config.quantity import parse_bytes
from ascendd.config.schema import InstanceConfig
from ascendd.config.vllm_rules import lora_rank
from ascendd.vllm.address import Address
from ascendd.vllm.ray_node import ray_environment

# Set by the supervisor for a vLLM on a CPU, whose cache is sized by a variable in whole GiB.
CPU_CACHE = "VLLM_CPU_KVCACHE_SPACE"
_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # Nothing is downloaded: the folder is there, or the start fails at once and says so.
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_LOGGING_COLOR": "0",
    # A line with the version instead of a drawing.
    "VLLM_DISABLE_LOG_LOGO": "1",
    "PYTHONUNBUFFERED": "1",
}
# Ours keeps torch from importing vendor packages unasked; vllm-ascend needs just that.
_NOT_FOR_VLLM = frozenset({"TORCH_DEVICE_BACKEND_AUTOLOAD", "PYTHONPATH", "PYTHONHOME"})


@dataclass(frozen=True)
class Command:
    """What is executed; a key is in `env` only."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


def build(config: InstanceConfig, address: Address, environ: Mapping[str, str]) -> Command:
    """Return how vLLM is started for `config`, to listen at `address`."""
    section = config.engine.vllm
    assert section is not None  # held by config.validate
    venv = Path(section.venv)
    argv = [str(venv / "bin" / "vllm"), "serve", config.model.path]
    argv += ["--served-model-name", config.model.name or Path(config.model.path).name]
    argv += ["--uds", address.path] if address.path else ["--host", "127.0.0.1", "--port", str(address.port)]
    # Our API logs each request with its id; scrapes once a second would drown all else.
    argv.append("--disable-uvicorn-access-log")
    argv += _model(config) + _engine(config, environ) + _adapters(config)
    for name, value in section.args.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            argv.append(option)
        elif value is False:
            argv.append(f"--no-{option[2:]}")
        else:
            argv += [option, str(value)]
    kept = {name: value for name, value in environ.items() if name not in _NOT_FOR_VLLM}
    env = kept | _ENVIRONMENT | {"VIRTUAL_ENV": str(venv)}
    env["PATH"] = f"{venv / 'bin'}:{environ.get('PATH', '/usr/bin:/bin')}"
    if address.key:
        env["VLLM_API_KEY"] = address.key
    if config.cluster is not None:
        env |= ray_environment(config.cluster)
    if config.engine.num_threads is not None:
        # Else vLLM's CPU build binds threads to cores by itself and does not look at OMP_NUM_THREADS.
        env.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    return Command(tuple(argv), env)


def _model(config: InstanceConfig) -> list[str]:
    model, parallel = config.model, config.parallel
    argv = ["--dtype", model.dtype]
    if model.max_model_len is not None:
        argv += ["--max-model-len", str(model.max_model_len)]
    argv += ["--tensor-parallel-size", str(parallel.tensor_parallel_size)]
    if config.cluster is not None:
        argv += ["--distributed-executor-backend", "ray", "--pipeline-parallel-size", str(config.cluster.nodes)]
    elif parallel.pipeline_parallel_size > 1:
        argv += ["--pipeline-parallel-size", str(parallel.pipeline_parallel_size)]
    return argv


def _engine(config: InstanceConfig, environ: Mapping[str, str]) -> list[str]:
    engine = config.engine
    argv = ["--max-num-seqs", str(engine.max_num_seqs)]
    numbers = {
        "--max-num-batched-tokens": engine.max_num_batched_tokens,
        "--block-size": engine.block_size,
        "--num-gpu-blocks-override": engine.max_num_blocks,
        "--gpu-memory-utilization": engine.gpu_memory_utilization,
        "--seed": engine.seed,
    }
    for option, number in numbers.items():
        if number is not None:
            argv += [option, str(number)]
    if engine.kv_cache_memory is not None and CPU_CACHE not in environ:
        argv += ["--kv-cache-memory-bytes", str(parse_bytes(engine.kv_cache_memory))]
    if engine.kv_cache_dtype != "auto":
        argv += ["--kv-cache-dtype", engine.kv_cache_dtype]
    argv.append("--enable-prefix-caching" if engine.enable_prefix_caching else "--no-enable-prefix-caching")
    if engine.enforce_eager:
        argv.append("--enforce-eager")
    return argv


def _adapters(config: InstanceConfig) -> list[str]:
    engine, adapters = config.engine, config.model.adapters
    if not (adapters if engine.enable_lora is None else engine.enable_lora):
        return []
    argv = ["--enable-lora", "--max-loras", str(engine.max_loras), "--max-lora-rank", str(lora_rank(config))]
    argv += ["--max-cpu-loras", str(max(engine.max_cpu_loras, engine.max_loras))]
    if adapters:
        argv.append("--lora-modules")
        argv += [json.dumps({"name": adapter.name, "path": adapter.path}) for adapter in adapters]
    return argv
