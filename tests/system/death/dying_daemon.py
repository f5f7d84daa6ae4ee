"""
An instance of the real processes that dies as told: dying_daemon.py CONFIG_FILE, or a child's role with its arguments.

Every process raises an exception of nobody's class in its main thread on SIGUSR2. Deadlines are short, so that a process
that SIGSTOP holds is found in seconds. The engine, or each rank of several, waits in its load while the file DYING_HOLD
exists, having made DYING_HOLD.reached, makes DYING_HOLD.prefill with each step of a prompt, and each step takes
DYING_STEP_S longer.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

SHORT_DEADLINES = {"hello_s": 60.0, "loading_s": 30.0, "heartbeat_s": 8.0, "step_s": 20.0}
SHORT_TIMING = {"abort_grace_s": 1.0, "stop_grace_s": 6.0}


class Defect(RuntimeError):
    """What a programming error of ours would raise."""


def _raise(*_args: Any) -> None:
    raise Defect("raised by the test")


def run_child(argv: list[str]) -> int:
    """Run a role as `python -m ascendd` would."""
    from ascendd.__main__ import main

    if argv[0] in ("_engine", "_worker"):
        _slow_down(is_rank=argv[0] == "_worker")
    sys.argv = ["ascendd", *argv]
    return main()


def _slow_down(*, is_rank: bool) -> None:
    import ascendd.engine.main as engine_main
    from ascendd.engine.exec.multiproc import MultiProcessExecutor
    from ascendd.engine.runner.model_runner import ModelRunner

    load, execute, make = engine_main.load, ModelRunner.execute, ModelRunner.__init__
    hold, step_s = Path(os.environ["DYING_HOLD"]), float(os.environ["DYING_STEP_S"])

    def wait() -> None:
        Path(f"{hold}.reached").touch()
        while hold.exists():
            time.sleep(0.02)

    def slow_load(config: Any, *args: Any) -> Any:
        if config.parallel.tensor_parallel_size == 1:
            wait()
        return load(config, *args)

    def slow_make(self: Any, *args: Any) -> None:
        if is_rank:
            wait()
        make(self, *args)

    def slow_execute(self: Any, output: Any) -> Any:
        if output.chunks[0].sequence.seq_id > 0:
            if output.chunks[0].num_tokens > 1:
                Path(f"{hold}.prefill").touch()
            time.sleep(step_s)
        return execute(self, output)

    engine_main.load = slow_load
    MultiProcessExecutor.__init__.__kwdefaults__["command"] = (sys.executable, __file__, "_worker")
    ModelRunner.__init__ = slow_make  # type: ignore[method-assign]
    ModelRunner.execute = slow_execute  # type: ignore[method-assign]


def run_daemon(config_file: str) -> int:
    """Run the supervisor over roles of this script."""
    from ascendd.config.load import load_file
    from ascendd.errors import AscenddError
    from ascendd.supervisor import instance
    from ascendd.supervisor.health import Deadlines
    from ascendd.supervisor.phase import Timing
    from ascendd.supervisor.spec import build_specs

    config = load_file(Path(config_file))
    specs = {
        role: dataclasses.replace(spec, argv=(sys.executable, __file__, spec.argv[-1]))
        for role, spec in build_specs(
            instance.complete(config), "dying", kind="cpu", environ=os.environ, num_cores=1
        ).items()
    }
    instance.Supervisor = functools.partial(  # type: ignore[assignment,misc]
        instance.Supervisor, deadlines=Deadlines(**SHORT_DEADLINES), timing=Timing(**SHORT_TIMING)
    )
    try:
        return instance.run_instance(config, "dying", specs=specs, gate=lambda _config: None).exit_code
    except AscenddError as error:
        print(error.code, error.message, file=sys.stderr)
        return int(error.exit_code)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, _raise)
    sys.exit(run_child(sys.argv[1:]) if sys.argv[1].startswith("_") else run_daemon(sys.argv[1]))
