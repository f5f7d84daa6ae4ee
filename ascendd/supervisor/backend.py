"""
EngineBackend: what differs between the engines that may stand behind one instance.

Everything else of the supervisor knows one engine only: a process of Role.ENGINE on a control link. What a backend has
to tell goes over that link, in the same messages for every backend, so nothing there asks which one it is:

    loading          Hello, then Progress; each sign extends systemd's start timeout and STATUS shows it
    readiness        Ready with its facts; then one token over the whole path, asked for by the API
    progress         Heartbeat once a second: the step, how long it has run, what runs and what waits
    death            ChildFault with the cause that its log or its own error showed, then the exit status
    drain            the API finishes its requests; then Shutdown, at which the process leaves with all it started
    metrics          Stats with totals since its start, and ForeignMetrics for families of the engine's own
    bounds, probe    EngineHello and ProbeDone on the data link to the API, whose end tells the API of a death

The native engine speaks this itself. Another engine gets a keeper: a small process that starts the engine in its own
process group, reads its log and its metrics, and speaks for it (`ascendd/vllm`).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Protocol

from ascendd.config.schema import InstanceConfig


class EngineBackend(Protocol):
    """How one kind of engine is checked and started."""

    # The private role of `python -m ascendd` that runs or keeps the engine.
    process: str
    # Checks of the gate that say nothing of this engine.
    skipped_checks: frozenset[str]

    def check(self, config: InstanceConfig) -> None:
        """Look at what must be there before a process is started. Raises ConfigError, ModelError or HostError."""

    def environment(
        self, config: InstanceConfig, instance: str, *, kind: str, environ: Mapping[str, str], num_cores: int
    ) -> dict[str, str]:
        """Return what its process gets besides every child's variables; `kind` is the device's."""

    def fits(self, config: InstanceConfig, tp_size: int) -> bool:
        """Return whether the model can be cut over `tp_size` devices, so that a faulty one may be left out."""


# By the name in `engine.backend`. A backend is imported once it is asked for.
_BACKENDS = {
    "native": "ascendd.supervisor.native_backend",
    "vllm": "ascendd.supervisor.vllm_backend",
}


def backend_of(config: InstanceConfig) -> EngineBackend:
    """Return the backend that `config` names."""
    backend: EngineBackend = importlib.import_module(_BACKENDS[config.engine.backend]).BACKEND
    return backend
