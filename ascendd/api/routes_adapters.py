"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, under vLLM's names."""

from __future__ import annotations

import asyncio
from pathlib import Path

from aiohttp import web

from ascendd.api.body import convert, decode_object
from ascendd.api.protocol import LoadAdapterRequest, UnloadAdapterRequest
from ascendd.api.service import SERVICE
from ascendd.errors import ActionForbidden, AdapterInvalid, InvalidRequest, ModelUnknown


async def load_adapter(request: web.Request) -> web.Response:
    """
    Load the adapter in folder `lora_path` as `lora_name`.

    Raises ActionForbidden unless the folder lies below model.adapter_root, AdapterInvalid for a bad adapter.
    """
    service = request.app[SERVICE]
    await service.admit(request)
    body = convert(decode_object(await service.read_body(request)), LoadAdapterRequest)
    name = _required(body.lora_name, "lora_name")
    written = _required(body.lora_path, "lora_path")
    # Links are looked up on the disk, so it happens in a thread.
    root = service.config.model.adapter_root
    path = await asyncio.to_thread(allowed_path, written, root)
    try:
        await service.adapters.load(name, path)
    except AdapterInvalid as error:
        # Told as the client wrote it: where the root lies is the operator's business.
        raise AdapterInvalid(error.message.replace(path, written), remedy=error.remedy, **error.facts) from error
    return web.json_response({"message": f"the adapter `{name}` is loaded"})


async def unload_adapter(request: web.Request) -> web.Response:
    """Take the adapter `lora_name` out; requests in work run to their end. Raises ModelUnknown."""
    service = request.app[SERVICE]
    await service.admit(request)
    body = convert(decode_object(await service.read_body(request)), UnloadAdapterRequest)
    name = _required(body.lora_name, "lora_name")
    if name not in service.adapters.names:
        raise ModelUnknown(f"no adapter `{name[:200]}` is loaded", param="lora_name", openai_code="model_not_found")
    await service.adapters.unload(name)
    return web.json_response({"message": f"the adapter `{name}` is unloaded"})


def allowed_path(written: str, root: str | None) -> str:
    """
    Return the folder `written`, links followed; a relative one begins at `root`.

    Raises ActionForbidden for all that is not below `root`, whether it exists or not.
    """
    if root is None:
        raise ActionForbidden(
            "adapters are not loaded over HTTP here: model.adapter_root is not set",
            remedy="Set model.adapter_root, or list the adapter in model.adapters.",
            param="lora_path",
        )
    if "\0" in written:
        raise InvalidRequest("`lora_path` is not a path", param="lora_path")
    real_root = Path(root).resolve()
    try:
        path = (real_root / written).resolve()
    except (OSError, RuntimeError):
        raise InvalidRequest("`lora_path` is not a path", param="lora_path") from None
    if real_root not in path.parents:
        raise ActionForbidden("`lora_path` does not lie below model.adapter_root", param="lora_path")
    return str(path)


def _required(value: str | None, field: str) -> str:
    if not value:
        raise InvalidRequest(f"`{field}` is required", param=field)
    return value
