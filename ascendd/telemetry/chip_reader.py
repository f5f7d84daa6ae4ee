"""ChipReader: reads the chips of a host for the exporter, with one call of npu-smi, and says what its page shows."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from ascendd.errors import ProbeError
from ascendd.host.files import HostFiles
from ascendd.host.npu_smi import NpuSmi, find_npu_smi
from ascendd.host.npu_smi_table import NpuSmiReport
from ascendd.host.tool import host_runner
from ascendd.ipc.control_path import SOCKET_NAME, instances
from ascendd.ipc.messages import Sample
from ascendd.telemetry import log
from ascendd.telemetry.chip_metrics import CHIP_METRICS, chip_samples
from ascendd.telemetry.metrics import MetricStore

# Where npu-exporter listens unless told otherwise; "NPU-Exporter Prometheus Metrics API" of its documentation.
NPU_EXPORTER_URL = "http://127.0.0.1:8082/metrics"
_PROBE_TIMEOUT_S = 2.0
_PROBE_BYTES = 1 << 20

NpuNames = Literal["auto", "always", "never"]


class ChipReader:
    """
    Makes the samples of one page after the other; not for several threads.

    `npu_names` says whether npu-exporter's names are among them: auto means while no npu-exporter runs on this host, so
    that no figure is ever there twice.
    """

    def __init__(
        self,
        files: HostFiles,
        environ: Mapping[str, str],
        npu_names: NpuNames = "auto",
        is_taken: Callable[[], bool] | None = None,
    ) -> None:
        self._files = files
        self._environ = dict(files.environ(environ))
        self._npu_names = npu_names
        self._is_taken = is_taken or (lambda: npu_exporter_runs(files))
        self._store = MetricStore(CHIP_METRICS)
        self._failure = ""
        self._log = log.get_logger("exporter")

    def read(self) -> list[Sample]:
        """
        Ask npu-smi and return all samples; where it cannot be asked, only that it cannot.

        A change from one to the other, and each new reason, is logged once.
        """
        started_s = time.monotonic()
        shown: list[Sample] = []
        try:
            report = self._report()
        except ProbeError as error:
            self._count("failed")
            if error.message != self._failure:
                self._log.warning("exporter.chips_unreadable", reason=error.message, remedy=error.remedy)
            self._failure = error.message
        else:
            if self._failure:
                self._log.info("exporter.chips_readable", chips=len(report.chips))
            self._failure = ""
            self._count("ok")
            with_npu_exporter = self._npu_names == "always" or (self._npu_names == "auto" and not self._is_taken())
            shown = chip_samples(report, with_npu_exporter=with_npu_exporter)
        self._store.set("ascendd_chips_readable", float(not self._failure))
        self._store.set("ascendd_chip_read_seconds", time.monotonic() - started_s)
        own = [sample for sample in self._store.samples() if sample.name != "ascendd_chips"]
        return own + shown + listening_instances(self._environ)

    def _count(self, outcome: str) -> None:
        self._store.inc("ascendd_chip_reads_total", 1.0, (outcome,))

    def _report(self) -> NpuSmiReport:
        return NpuSmi(find_npu_smi(self._files, self._environ), host_runner(self._files), self._environ).info()


def npu_exporter_runs(files: HostFiles, url: str = NPU_EXPORTER_URL) -> bool:
    """
    Whether a process called npu-exporter runs on this host, in a container or not, or `url` shows its names.

    In Kubernetes it listens on the address of its pod alone, so that its port says nothing and its process does.
    """
    pids = files.list_if_possible("/proc", "[0-9]*")
    if any((files.read_if_possible(f"/proc/{pid}/comm") or "").strip() == "npu-exporter" for pid in pids):
        return True
    try:
        with urllib.request.urlopen(url, timeout=_PROBE_TIMEOUT_S) as answer:  # noqa: S310 - a constant http address
            return b"npu_chip_info_" in answer.read(_PROBE_BYTES)
    except (OSError, ValueError):
        return False


def listening_instances(environ: Mapping[str, str]) -> list[Sample]:
    """Return for each instance that left a control socket whether somebody listens on it."""
    return [
        Sample("ascendd_instance_listening", float(_listens(path)), (name,))
        for name, path in sorted(instances(environ).items())
        if path.name == SOCKET_NAME
    ]


def _listens(path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(_PROBE_TIMEOUT_S)
            probe.connect(str(path))
    except PermissionError:
        return True  # somebody's socket, which this user may not use
    except OSError:
        return False
    return True
