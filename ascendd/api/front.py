"""Which service stands before which engine, by the name in `engine.backend`."""

from __future__ import annotations

from collections.abc import Callable

from ascendd.api.proxy_service import ProxyService
from ascendd.api.service import ApiService, FrontService
from ascendd.config.schema import InstanceConfig

_LOADERS: dict[str, Callable[[InstanceConfig], FrontService]] = {
    "native": ApiService.load,
    "vllm": ProxyService.load,
}


def load_front(config: InstanceConfig) -> FrontService:
    """Read what the service of `config` needs. Raises ConfigError, PermissionMissing, ModelNotFound, WeightsCorrupt."""
    return _LOADERS[config.engine.backend](config)
