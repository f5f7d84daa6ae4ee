"""The vllm backend: a `vllm serve` from its own environment, in the care of a keeper (`ascendd/vllm`)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from ascendd.config.quantity import parse_bytes
from ascendd.config.schema import InstanceConfig
from ascendd.errors import ConfigInvalid, ModelNotFound, ModelUnsupported
from ascendd.supervisor.engine_environment import engine_environment

_GIB = 1 << 30
# What `ascendd convert` writes (artefact.manifest, a room that is none of the supervisor's).
MANIFEST_NAME = "ascendd-manifest.json"


class VllmBackend:
    """See backend.EngineBackend."""

    process = "_vllm"
    # They ask for torch in our own environment, and reckon with our own plan of the memory.
    skipped_checks = frozenset({"python-stack", "model-artefact", "host-memory"})

    def check(self, config: InstanceConfig) -> None:
        """Look for vLLM and for a model that it can read. Raises ConfigInvalid, ModelNotFound or ModelUnsupported."""
        assert config.engine.vllm is not None  # held by config.validate
        venv = Path(config.engine.vllm.venv)
        executable = venv / "bin" / "vllm"
        if not os.access(executable, os.X_OK):
            what = "cannot be executed by this user" if executable.exists() else "is not there"
            raise ConfigInvalid(
                f"engine.vllm.venv is {venv}, and {executable} {what}",
                remedy=f"Install it there (python3 -m venv {venv}; {venv}/bin/pip install vllm), or correct the path.",
            )
        folder = Path(config.model.path)
        if not (folder / "config.json").is_file():
            what = "has no config.json" if folder.is_dir() else "is not a folder"
            text = f"model.path is {folder}, which {what}; vLLM reads Hugging Face folders"
            raise ModelNotFound(text, path=str(folder))
        if (folder / MANIFEST_NAME).is_file():
            raise ModelUnsupported(
                f"model.path is {folder}, which `ascendd convert` packed for the native engine",
                remedy="Name the Hugging Face folder that it was made from, or write engine.backend: native.",
            )

    def environment(
        self, config: InstanceConfig, instance: str, *, kind: str, environ: Mapping[str, str], num_cores: int
    ) -> dict[str, str]:
        """Return devices with their vendor's variables, threads where they were chosen, and the cache on a CPU."""
        env = engine_environment(config, instance, kind=kind, environ=environ, num_cores=num_cores)
        if kind == "cpu" and config.engine.kv_cache_memory is not None:
            # vLLM's CPU build takes whole GiB, by this variable only.
            env["VLLM_CPU_KVCACHE_SPACE"] = str(max(1, parse_bytes(config.engine.kv_cache_memory) // _GIB))
        return env

    def fits(self, config: InstanceConfig, tp_size: int) -> bool:
        """Return whether vLLM would cut the attention heads over `tp_size` devices."""
        try:
            raw = json.loads((Path(config.model.path) / "config.json").read_text(encoding="utf-8"))
            heads = raw.get("num_attention_heads", raw.get("text_config", {}).get("num_attention_heads"))
        except (OSError, ValueError, AttributeError):
            return False
        return isinstance(heads, int) and heads > 0 and heads % tp_size == 0


BACKEND = VllmBackend()
