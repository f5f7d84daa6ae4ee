"""
A machine of stand-in NPUs: made by a test, shared by every process that it starts, changed while they run.

    machine = Machine(tmp_path / "npu", num_devices=2, hbm_bytes=2 << 30)
    machine.fault("aclrtSynchronizeStreamWithTimeout", 507035, call=12, device=1)
    subprocess.run([sys.executable, "serve.py"], env=machine.environment())
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

from standin.build import DEFAULT_FOLDER

MAGIC = 0x4E505531
MAX_DEVICES = 16
MAX_RULES = 32
MAX_HOLDERS = 64
COUNT, CODE, HANG, DELAY = range(4)
FOR_EVER = 0xFFFFFFFF
HERE = Path(__file__).resolve().parent


class Rule(ctypes.Structure):
    """csrc/machine.h `struct rule`."""

    _fields_ = [
        ("function", ctypes.c_char * 64),
        ("device", ctypes.c_int32),
        ("code", ctypes.c_int32),
        ("action", ctypes.c_uint32),
        ("first", ctypes.c_uint32),
        ("times", ctypes.c_uint32),
        ("calls", ctypes.c_uint32),
    ]


class Holder(ctypes.Structure):
    """csrc/machine.h `struct holder`."""

    _fields_ = [("pid", ctypes.c_int32), ("pad", ctypes.c_int32), ("used", ctypes.c_uint64 * MAX_DEVICES)]


class State(ctypes.Structure):
    """csrc/machine.h `struct machine`."""

    _fields_ = [
        ("magic", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("num_devices", ctypes.c_uint32),
        ("heartbeat_ms", ctypes.c_uint32),
        ("hbm_bytes", ctypes.c_uint64),
        ("soc", ctypes.c_char * 32),
        ("cann", ctypes.c_char * 32),
        ("perturbed", ctypes.c_char * 96),
        ("perturb_factor", ctypes.c_double),
        ("perturb_output", ctypes.c_int32),
        ("pad", ctypes.c_int32),
        ("lock", ctypes.c_int32),
        ("num_rules", ctypes.c_int32),
        ("dead", ctypes.c_int32 * MAX_DEVICES),
        ("rules", Rule * MAX_RULES),
        ("holders", Holder * MAX_HOLDERS),
    ]


class Machine:
    """
    `num_devices` NPUs of `hbm_bytes` each, over all processes that hold `environment()`.

    `soc` and `cann` are what the runtime reports; torch_npu refuses a SoC name it does not know. A dead peer is noticed
    by collectives after `heartbeat_s`; hardware takes longer.
    """

    def __init__(
        self,
        folder: Path,
        *,
        num_devices: int = 1,
        hbm_bytes: int = 2 << 30,
        soc: str = "Ascend910B3",
        cann: str = "8.3.RC1",
        heartbeat_s: float = 1.0,
        standin: Path = DEFAULT_FOLDER,
    ) -> None:
        if not 0 <= num_devices <= MAX_DEVICES:
            raise ValueError(f"num_devices {num_devices}: a machine has 0 to {MAX_DEVICES}")
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "machine"
        self.standin = standin
        self.path.write_bytes(bytes(ctypes.sizeof(State)))
        with self.path.open("r+b") as file:
            self._state = State.from_buffer(mmap.mmap(file.fileno(), 0))
        self._state.size = ctypes.sizeof(State)
        self._state.num_devices = num_devices
        self._state.heartbeat_ms = round(heartbeat_s * 1000)
        self._state.hbm_bytes = hbm_bytes
        self._state.soc, self._state.cann = soc.encode(), cann.encode()
        self._state.magic = MAGIC

    def environment(self, **more: str) -> dict[str, str]:
        """Return this process's environment, changed so that a child's torch_npu runs on this machine."""
        lib, child = str(self.standin / "lib"), str(HERE / "child")
        site = str(self.standin / "site")
        return os.environ | {
            "STANDIN_NPU_MACHINE": str(self.path),
            "LD_LIBRARY_PATH": _before(lib, "LD_LIBRARY_PATH"),
            "PYTHONPATH": _before(f"{child}{os.pathsep}{site}", "PYTHONPATH"),
            # torch would load torch_npu on import in every process; host arithmetic is not for a queue in a thread.
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "TASK_QUEUE_ENABLE": "0",
        } | more  # fmt: skip

    def fault(self, function: str, code: int, *, call: int = 1, times: int = 1, device: int = -1) -> Rule:
        """
        Let calls number `call` .. of an ACL or HCCL function return `code`; counted over all processes from now.

        `name@capture` stands for those calls of a function that come while a stream of the process is captured.
        """
        return self._add(function, CODE, code, call, times, device)

    def hang(self, function: str, *, call: int = 1, device: int = -1) -> Rule:
        """Let call number `call` of `function`, and all later ones, never return."""
        return self._add(function, HANG, 0, call, FOR_EVER, device)

    def slow(self, function: str, seconds: float, *, device: int = -1) -> Rule:
        """Let every call of `function` (an operator's name, too: aten::mm) take `seconds` longer."""
        return self._add(function, DELAY, round(seconds * 1e6), 1, FOR_EVER, device)

    def watch(self, function: str, *, device: int = -1) -> Rule:
        """Count calls of `function` from now on, in the `.calls` of what is returned."""
        return self._add(function, COUNT, 0, 1, 0, device)

    def kill_device(self, device: int, code: int = 507010) -> None:
        """Let every call on `device` fail from now on, running streams included. 507010: heartbeat lost."""
        self._state.dead[device] = code

    def revive_device(self, device: int) -> None:
        """Undo kill_device, as a reset of the device would."""
        self._state.dead[device] = 0

    def perturb(self, operator: str | None, factor: float = 1.01, *, output: int = 0) -> None:
        """
        Multiply one result of `operator` (npu::npu_rms_norm) by `factor`; None: no result of any.

        `output` counts what it returns or writes to, floating-point tensors alone.
        """
        self._state.perturb_factor, self._state.perturb_output = factor, output
        self._state.perturbed = (operator or "").encode()

    def used_bytes(self, device: int) -> int:
        """Return what living processes hold of `device`, bytes."""
        return sum(
            holder.used[device] for holder in self._state.holders if holder.pid and Path(f"/proc/{holder.pid}").exists()
        )

    def _add(self, function: str, action: int, code: int, first: int, times: int, device: int) -> Rule:
        index = self._state.num_rules
        if index == MAX_RULES:
            raise ValueError(f"a machine has at most {MAX_RULES} faults")
        rule: Rule = self._state.rules[index]
        rule.function, rule.action, rule.code = function.encode(), action, code
        rule.first, rule.times, rule.device = first, times, device
        self._state.num_rules = index + 1  # last: the processes read rules up to it
        return rule


def _before(folders: str, variable: str) -> str:
    there = os.environ.get(variable)
    return f"{folders}{os.pathsep}{there}" if there else folders
