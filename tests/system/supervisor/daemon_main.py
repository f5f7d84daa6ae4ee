"""
A supervisor with fake children: daemon_main.py CONFIG_FILE OPTIONS, options as JSON.

plan: see fake_role.py. deadlines, timing: fields to replace, so that hangs take no minutes. reading: see FileProbe.
host: the folder of a /proc in which memory is looked at. fake_host: the fake host that the live checks look at, on an NPU.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
import os
import sys
from pathlib import Path

import msgspec

from ascendd.config.load import load_file
from ascendd.errors import AscenddError
from ascendd.host.chip_reset import ChipReset
from ascendd.host.files import HostFiles
from ascendd.host.systemd import Notifier, watchdog_interval_s
from ascendd.ipc.messages import Role
from ascendd.preflight.live import run_live
from ascendd.supervisor.chip_repair import ChipRepair
from ascendd.supervisor.device_probe import DeviceProbe
from ascendd.supervisor.health import Deadlines
from ascendd.supervisor.instance import complete, run_instance
from ascendd.supervisor.phase import Timing
from ascendd.supervisor.release import DeviceReading
from ascendd.supervisor.sockets import open_listener
from ascendd.supervisor.spec import build_specs
from ascendd.supervisor.supervisor import Supervisor
from ascendd.telemetry import log


class FileProbe:
    """Reads the devices from a file that the test writes; nobody holds any while there is none."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, old_leader: int | None, unused: frozenset[int]) -> DeviceReading:
        return DeviceReading(**json.loads(self._path.read_text())) if self._path.exists() else DeviceReading()


FAKE = Path(__file__).resolve().parent / "fake_role.py"


def main(config_file: str, options_json: str) -> int:
    """Run the instance and return its exit status."""
    options = json.loads(options_json)
    config = load_file(Path(config_file))
    specs = dict(build_specs(complete(config), "fake", kind="cpu", environ=os.environ, num_cores=1))
    for role in (Role.ENGINE, Role.API):
        argv = (sys.executable, str(FAKE), json.dumps(options["plan"]), f"_{role.value}")
        specs[role] = dataclasses.replace(specs[role], argv=argv)
    try:
        if "deadlines" not in options and "timing" not in options:
            return run_instance(
                config, "fake", specs=specs, gate=lambda _config: None, reload=lambda: load_file(Path(config_file))
            ).exit_code
        return short(config, specs, options)
    except AscenddError as error:
        print(error.code, error.message, file=sys.stderr)
        return int(error.exit_code)


def short(config, specs, options) -> int:
    """Run the loop itself with other deadlines."""
    config = complete(config)
    log.configure(config.log, instance="fake", role="supervisor")
    with contextlib.ExitStack() as stack:
        listeners = {
            "api": stack.enter_context(open_listener("api", config.listen.host, config.listen.port, {})),
            "metrics": stack.enter_context(open_listener("metrics", config.metrics.host, config.metrics.port, {})),
        }
        live = None
        if "fake_host" in options:
            npu = msgspec.structs.replace(
                config,
                engine=msgspec.structs.replace(config.engine, device="npu"),
                parallel=msgspec.structs.replace(config.parallel, devices=[5]),
            )
            live = functools.partial(run_live, npu, "fake", {}, options["fake_host"])
        host_probe = repair = None
        if "resettable" in options:
            machine, devices = HostFiles(options["resettable"]), frozenset(options["devices"])
            assert machine.fake is not None
            environ = machine.fake.environ or {}
            host_probe = DeviceProbe(devices, machine, environ)
            reset = ChipReset(Path(options["resettable"]) / "logs", machine, environ, back_s=1.0, pause_s=0.1)
            repair = ChipRepair("fake", devices, reset) if options.get("resets", True) else None
        supervisor = Supervisor(
            config,
            "fake",
            specs,
            listeners,
            notifier=Notifier(),
            watchdog_s=watchdog_interval_s(),
            deadlines=dataclasses.replace(Deadlines(), **options.get("deadlines", {})),
            timing=dataclasses.replace(Timing(), **options.get("timing", {})),
            files=HostFiles(options["host"]) if "host" in options else None,
            live_checks=live,
            probe=FileProbe(Path(options["reading"])) if "reading" in options else host_probe,
            repair=repair,
        )
        return asyncio.run(supervisor.run()).exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
