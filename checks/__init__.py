"""The preflight checks, one file each, in the order of the report. A new check is added to the tuple by hand."""

from __future__ import annotations

from typing import Tuple, Type

from ascendd.preflight.check import Check

from .acl_runtime import AclRuntime
from .acl_sample import AclSample
from .cann_layout import CannLayout
from .cann_version import CannVersion
from .clock import Clock
from .cluster_agreement import ClusterAgreement
from .cluster_chips import ClusterChips
from .cluster_names import ClusterNames
from .cluster_network import ClusterNetwork
from .cluster_ports import ClusterPorts
from .cpu_governor import CpuGovernor
from .device_holders import DeviceHolders
from .driver_cann import DriverCann
from .driver_firmware import DriverFirmware
from .driver_version import DriverVersion
from .firmware_version import FirmwareVersion
from .hbm_free import HbmFree
from .hccl_all_reduce import HcclAllReduce
from .hccl_link import HcclLink
from .hccl_ports import HcclPorts
from .hccl_tls import HcclTls
from .host_memory import HostMemory
from .huge_pages import HugePages
from .kernel_log import KernelLog
from .leftover_processes import LeftoverProcesses
from .log_disk import LogDisk
from .model_artefact import ModelArtefact
from .nnal import Nnal
from .npu_ecc import NpuEcc
from .npu_health import NpuHealth
from .npu_kernels import NpuKernels
from .npu_presence import NpuPresence
from .npu_security import NpuSecurity
from .npu_sensors import NpuSensors
from .npu_speed import NpuSpeed
from .npu_topology import NpuTopology
from .numa_affinity import NumaAffinity
from .pending_reboot import PendingReboot
from .placeholder_packages import PlaceholderPackages
from .plan_fits import PlanFits
from .port_free import PortFree
from .python_stack import PythonStack
from .service_environment import ServiceEnvironment
from .service_user import ServiceUser
from .shared_memory import SharedMemory
from .shell_environment import ShellEnvironment
from .site_policy import SitePolicy
from .swappiness import Swappiness
from .ulimits import Ulimits
from .vendor_libraries import VendorLibraries
from .vendor_sample import VendorSample

CHECKS: Tuple[Type[Check], ...] = (
    NpuPresence,
    NpuSecurity,
    NpuHealth,
    NpuEcc,
    NpuSensors,
    HbmFree,
    DeviceHolders,
    SitePolicy,
    FirmwareVersion,
    DriverVersion,
    DriverFirmware,
    PendingReboot,
    KernelLog,
    CannVersion,
    CannLayout,
    DriverCann,
    ServiceEnvironment,
    ShellEnvironment,
    ServiceUser,
    VendorLibraries,
    Nnal,
    PythonStack,
    PlaceholderPackages,
    AclRuntime,
    AclSample,
    VendorSample,
    HcclLink,
    HcclTls,
    HcclPorts,
    ClusterNetwork,
    ClusterNames,
    ClusterPorts,
    ClusterChips,
    ClusterAgreement,
    NpuTopology,
    NumaAffinity,
    NpuKernels,
    NpuSpeed,
    HcclAllReduce,
    ModelArtefact,
    PlanFits,
    HostMemory,
    SharedMemory,
    HugePages,
    Swappiness,
    CpuGovernor,
    Ulimits,
    LogDisk,
    Clock,
    PortFree,
    LeftoverProcesses,
)
