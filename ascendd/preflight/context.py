"""
CheckContext: everything a check may look at, each probe replaceable.

A check runs in a child process, so what defines a context is the CheckRequest: plain data that travels as JSON. The
probes are made from it on the other side; tests put their own in.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Callable, Dict, FrozenSet, Mapping, Optional

from ascendd.errors import ProbeUnavailable
from ascendd.host import acl
from ascendd.host.command import RunCommand
from ascendd.host.fake_host import require_fake_host
from ascendd.host.files import HostFiles
from ascendd.host.npu_smi import CALL_TIMEOUT_S, NpuSmi, find_npu_smi
from ascendd.host.service_environment import ServiceEnvironment, read_service_environment
from ascendd.host.shared_answers import share_answers
from ascendd.host.tool import host_runner
from ascendd.preflight.target import DeviceChoice, Target, choose_target


@dataclass(frozen=True)
class CheckRequest:
    """
    What is to be checked, as plain data.

    `config_json` is an InstanceConfig; `root` a fake host in place of this one (UsageError where it has no mark);
    `patience` a factor on every time limit; `inside_service` says that this process has the service's environment;
    `as_service` that the shell is to be compared with the unit of `instance`; `answers` is a folder of tool answers
    that the checks of one round share.
    """

    device: str = "auto"
    instance: Optional[str] = None
    config_json: Optional[str] = None
    model_path: Optional[str] = None
    deep: bool = False
    inside_service: bool = False
    as_service: bool = False
    answers: Optional[str] = None
    root: str = "/"
    patience: float = 1.0
    environ: Dict[str, str] = field(default_factory=lambda: dict(os.environ))

    def to_json(self) -> Dict[str, Any]:
        """Return plain data; CheckRequest(**data) takes it back."""
        return asdict(self)


AclCount = Callable[[HostFiles, Mapping[str, str], float], acl.AclOutcome]
AclRoundTrip = Callable[[HostFiles, Mapping[str, str], int, float], acl.AclOutcome]


class CheckContext:
    """Probes for one round of checks, made from a request; every attribute may be replaced in a test."""

    def __init__(self, request: CheckRequest) -> None:
        self.request = request
        self.files = HostFiles(require_fake_host(request.root))
        self.run: RunCommand = host_runner(self.files)
        if request.answers is not None:
            self.run = share_answers(self.run, request.answers)
        self.environ: Mapping[str, str] = self.files.environ(request.environ)
        self.clock: Callable[[], float] = time.monotonic
        self.acl_count: AclCount = acl.count_devices
        self.acl_round_trip: AclRoundTrip = acl.round_trip
        self.config: Any = _decode_config(request.config_json)
        self._service: Optional[ServiceEnvironment] = None

    @property
    def model_path(self) -> Optional[str]:
        """The model folder: named on the command line, else by the configuration."""
        if self.request.model_path is not None:
            return self.request.model_path
        return None if self.config is None else str(self.config.model.path)

    @property
    def target(self) -> Target:
        """NPU or CPU, and why."""
        configured = None if self.config is None else self.config.engine.device
        return choose_target(
            self.files,
            DeviceChoice(self.request.device),
            configured,
            has_model=self.model_path is not None,
            instance=self.request.instance,
        )

    @property
    def is_container(self) -> bool:
        """Whether this is a container: it sees the host's PCI bus, but only the devices that it was given."""
        marks = ("/.dockerenv", "/run/.containerenv")
        return any(self.files.exists(mark) for mark in marks) or bool(self.environ.get("container"))

    def logical_devices(self) -> Optional[FrozenSet[int]]:
        """Return the devices that the instance uses, None without a configuration."""
        if self.config is None:
            return None
        parallel = self.config.parallel
        if parallel.devices is not None:
            return frozenset(parallel.devices)
        return frozenset(range(parallel.tensor_parallel_size * parallel.pipeline_parallel_size))

    def npu_smi(self) -> NpuSmi:
        """Return the tool. Raises ProbeUnavailable when there is none."""
        path = find_npu_smi(self.files, self.environ)
        return NpuSmi(path, self.run, self.environ, CALL_TIMEOUT_S * self.request.patience)

    def service(self) -> ServiceEnvironment:
        """Return the environment that the service will see."""
        if self._service is None:
            self._service = read_service_environment(
                self.files, self.run, self.environ, self.request.instance, self.request.inside_service
            )
        return self._service


def _decode_config(config_json: Optional[str]) -> Any:
    """Decode an InstanceConfig; msgspec is needed only here, and only when there is one."""
    if config_json is None:
        return None
    try:
        import msgspec

        from ascendd.config.schema import InstanceConfig
    except ImportError as error:
        raise ProbeUnavailable(f"a configuration needs {error.name}, which this Python lacks") from error
    return msgspec.json.decode(config_json, type=InstanceConfig)
