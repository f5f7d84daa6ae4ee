"""The files that a configuration names beside the model, looked at before a process starts and minutes are lost."""

from __future__ import annotations

import json
from pathlib import Path

from ascendd.config.certificate import check_pair
from ascendd.config.key_file import read_credentials
from ascendd.config.schema import AdapterEntry, InstanceConfig
from ascendd.errors import AdapterInvalid, PermissionMissing

# What makes a folder an adapter's: PEFT's names (https://huggingface.co/docs/peft/package_reference/lora).
_CONFIG_NAME = "adapter_config.json"
_WEIGHTS_NAME = "adapter_model.safetensors"


def check_inputs(config: InstanceConfig) -> None:
    """
    Open the key file, the certificate with its key, and each adapter of `config`.

    Raises ConfigError for a key file without keys and for a certificate that is broken or expired, PermissionMissing
    for a file that this user cannot read and AdapterInvalid for a folder that holds no adapter. Whether an adapter
    fits the model is for the engine to say.
    """
    if config.listen.api_key_file is not None:
        read_credentials(Path(config.listen.api_key_file))
    if config.listen.tls is not None:
        check_pair(config.listen.tls)
    for adapter in config.model.adapters:
        _check_adapter(adapter)


def _check_adapter(adapter: AdapterEntry) -> None:
    folder = Path(adapter.path)
    where = f"model.adapters: {adapter.name}: {folder}"
    facts = {"adapter": adapter.name, "path": str(folder)}
    try:
        if not folder.is_dir():
            text = "is not a folder" if folder.exists() else "does not exist"
            remedy = "Correct the path, or remove the adapter from model.adapters."
            raise AdapterInvalid(f"{where} {text}", remedy=remedy, **facts)
        for name in (_CONFIG_NAME, _WEIGHTS_NAME):
            if not (folder / name).is_file():
                raise AdapterInvalid(f"{where} holds no {name}, so it is not an adapter's folder", **facts)
        with (folder / _WEIGHTS_NAME).open("rb"):
            pass
        if not isinstance(json.loads((folder / _CONFIG_NAME).read_text(encoding="utf-8")), dict):
            raise AdapterInvalid(f"{where}: {_CONFIG_NAME} holds no JSON object", **facts)
    except (ValueError, RecursionError) as error:
        raise AdapterInvalid(f"{where}: {_CONFIG_NAME} cannot be read: {error}", **facts) from error
    except OSError as error:
        raise PermissionMissing(f"{where} cannot be read: {error.strerror}", **facts) from error
