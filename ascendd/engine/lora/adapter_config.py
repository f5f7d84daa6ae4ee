"""
adapter_config.json of PEFT: what is read of it, and what is refused by name.

Field names and meanings are those of peft.LoraConfig (https://huggingface.co/docs/peft/package_reference/lora).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec

from ascendd.errors import AdapterInvalid

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
_MAX_CONFIG_BYTES = 1 << 20

# What would change the computation and is not done here; each is refused unless it is off (null, false, empty).
UNSUPPORTED_FIELDS = (
    "use_dora", "modules_to_save", "rank_pattern", "alpha_pattern", "fan_in_fan_out", "lora_bias", "layer_replication",
    "trainable_token_indices", "target_parameters", "alora_invocation_tokens", "use_qalora", "use_bdlora",
    "arrow_config", "kasa_config", "velora_config", "monteclora_config",
)  # fmt: skip
# Initialisations that leave the base weights as they are; pissa, olora, corda and loftq shift them, and an adapter
# saved so belongs to those shifted weights. PEFT writes true once such an adapter was converted.
_PLAIN_INITS = (None, True, False, "gaussian", "eva", "orthogonal", "true", "false")


class AdapterConfig(msgspec.Struct, frozen=True):
    """
    What the engine needs to know of an adapter.

    `target_modules` are the last parts of module names, or None where a pattern or `all-linear` chose them.
    `covers_all_layers` is whether each of them must then be there in every layer.
    """

    rank: int
    scale: float
    target_modules: frozenset[str] | None
    covers_all_layers: bool


def read_adapter_config(folder: Path, max_rank: int) -> AdapterConfig:
    """Read the configuration of the adapter in `folder`. Raises AdapterInvalid for whatever cannot be served."""
    path = folder / CONFIG_NAME
    try:
        if not path.is_file():
            raise AdapterInvalid(f"{folder} holds no {CONFIG_NAME}, so it is not an adapter's folder", path=str(folder))
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            raise ValueError(f"it has more than {_MAX_CONFIG_BYTES} bytes")
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise ValueError("it holds no JSON object")  # noqa: TRY004 - told like the other faults of the file
    except (OSError, ValueError, RecursionError) as error:
        raise AdapterInvalid(f"{path} cannot be read: {error}", path=str(path)) from error
    return _parse(data, str(path), max_rank)


def _parse(data: dict[str, Any], origin: str, max_rank: int) -> AdapterConfig:
    kind = data.get("peft_type", "LORA")
    if kind != "LORA":
        raise AdapterInvalid(f"{origin}: peft_type {kind} is not supported; supported: LORA")
    for name in UNSUPPORTED_FIELDS:
        if data.get(name):
            raise AdapterInvalid(f"{origin}: {name} is set, which is not supported", field=name)
    if data.get("bias", "none") != "none":
        raise AdapterInvalid(f"{origin}: bias {data['bias']} is not supported; supported: none", field="bias")
    init = data.get("init_lora_weights")
    if init not in _PLAIN_INITS:
        raise AdapterInvalid(
            f"{origin}: init_lora_weights {init} belongs to base weights that it changed",
            remedy="Convert it when saving: save_pretrained(..., path_initial_model_for_weight_conversion=...).",
            field="init_lora_weights",
        )
    rank, alpha = data.get("r"), data.get("lora_alpha")
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        raise AdapterInvalid(f"{origin}: r is {rank!r}, must be a whole number from 1 to {max_rank}", field="r")
    if rank > max_rank:
        raise AdapterInvalid(
            f"{origin}: rank {rank} is more than engine.max_lora_rank ({max_rank})",
            remedy="Raise engine.max_lora_rank, up to 64, or train the adapter with a lower rank.",
            found=rank,
            expected=max_rank,
        )
    if not isinstance(alpha, (int, float)) or isinstance(alpha, bool) or not math.isfinite(alpha):
        raise AdapterInvalid(f"{origin}: lora_alpha is {alpha!r}, must be a number", field="lora_alpha")
    scale = alpha / math.sqrt(rank) if data.get("use_rslora") else alpha / rank
    targets, covers_all = _targets(data, origin)
    return AdapterConfig(rank, float(scale), targets, covers_all)


def _targets(data: dict[str, Any], origin: str) -> tuple[frozenset[str] | None, bool]:
    written = data.get("target_modules")
    # A pattern is not evaluated: the tensors say what it matched, and a pattern from outside can run for ever.
    if isinstance(written, str) and written:
        return None, False
    if not isinstance(written, list) or not written or not all(isinstance(name, str) and name for name in written):
        raise AdapterInvalid(
            f"{origin}: target_modules is {written!r}, must be a list of module names or a pattern",
            field="target_modules",
        )
    some_layers = any(
        data.get(name) is not None for name in ("layers_to_transform", "layers_pattern", "exclude_modules")
    )
    return frozenset(written), not some_layers
