"""The preflight checks, one file each, in the order of the report. A new check is added to the tuple by hand."""

from __future__ import annotations

from typing import Tuple, Type

from ascendd.preflight.check import Check

from .acl_runtime import AclRuntime
from .cann_version import CannVersion
from .driver_version import DriverVersion
from .firmware_version import FirmwareVersion
from .host_memory import HostMemory
from .model_artefact import ModelArtefact
from .npu_health import NpuHealth
from .npu_kernels import NpuKernels
from .npu_presence import NpuPresence
from .service_environment import ServiceEnvironment

CHECKS: Tuple[Type[Check], ...] = (
    NpuPresence,
    NpuHealth,
    DriverVersion,
    FirmwareVersion,
    CannVersion,
    ServiceEnvironment,
    AclRuntime,
    NpuKernels,
    ModelArtefact,
    HostMemory,
)
