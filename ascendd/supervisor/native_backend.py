"""The native backend: ascendd's own engine, which speaks the control link itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ascendd.config.model_facts import read_model_facts
from ascendd.config.schema import InstanceConfig
from ascendd.errors import AscenddError
from ascendd.supervisor.engine_environment import engine_environment


class NativeBackend:
    """See backend.EngineBackend."""

    process = "_engine"
    skipped_checks: frozenset[str] = frozenset()

    def check(self, config: InstanceConfig) -> None:
        """Read what the model says of itself. Raises ModelError for one that this engine does not know."""
        read_model_facts(Path(config.model.path))

    def environment(
        self, config: InstanceConfig, instance: str, *, kind: str, environ: Mapping[str, str], num_cores: int
    ) -> dict[str, str]:
        """Return threads and the devices with their vendor's variables."""
        return engine_environment(config, instance, kind=kind, environ=environ, num_cores=num_cores)

    def fits(self, config: InstanceConfig, tp_size: int) -> bool:
        """Return whether heads and widths of the model divide by `tp_size`."""
        try:
            read_model_facts(Path(config.model.path)).check_tensor_parallel(tp_size)
        except AscenddError:
            return False
        return True


BACKEND = NativeBackend()
