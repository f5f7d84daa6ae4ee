"""
Every environment variable that the engine of an NPU instance gets, in one table.

Names and values: vllm-ascend's optimization_and_tuning.md, the HCCL environment variable reference, torch_npu's
documents. A variable that the unit sets keeps its value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# A lost peer is noticed by its exit long before this; it bounds what a stuck link costs.
HCCL_EXEC_TIMEOUT_S = 600
VISIBLE_DEVICES = "ASCEND_RT_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable, its value, and why it has that value."""

    name: str
    value: str
    why: str


NPU_VARIABLES: tuple[Variable, ...] = (
    Variable("TASK_QUEUE_ENABLE", "2", "the host prepares operators while the device computes earlier ones"),
    Variable("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True", "segments that grow fragment less"),
    Variable("HCCL_CONNECT_TIMEOUT", "600", "ranks of a large model finish loading far apart; 120 s are too few"),
    Variable("HCCL_EXEC_TIMEOUT", str(HCCL_EXEC_TIMEOUT_S), "the default of 1,836 s keeps a broken group for an hour"),
    # torch_npu asks that its own event timeout be longer than HCCL's, else it hides HCCL's message.
    Variable("HCCL_EVENT_TIMEOUT", str(HCCL_EXEC_TIMEOUT_S + 60), "must be longer than HCCL_EXEC_TIMEOUT"),
    Variable("HCCL_OP_EXPANSION_MODE", "AIV", "collectives run on vector cores; small ones get faster"),
    Variable("CPU_AFFINITY_CONF", "1", "threads of a process stay near its device"),
    Variable("ASCEND_GLOBAL_LOG_LEVEL", "3", "errors only; the default of some images writes gigabytes"),
)


def npu_environment(environ: Mapping[str, str], *, devices: list[int], instance: str) -> dict[str, str]:
    """
    Return what the engine gets besides everybody's variables.

    `devices` are logical ids; the runtime wants them ascending, without blanks, and renumbers them from 0. The vendor's
    process log goes below systemd's logs directory, where there is one, a folder an instance.
    """
    env = {variable.name: environ.get(variable.name, variable.value) for variable in NPU_VARIABLES}
    env[VISIBLE_DEVICES] = ",".join(str(device) for device in sorted(devices))
    logs = environ.get("LOGS_DIRECTORY", "").split(":")[0]
    if logs and "ASCEND_PROCESS_LOG_PATH" not in environ:
        env["ASCEND_PROCESS_LOG_PATH"] = f"{logs}/{instance}/ascend"
    return env
