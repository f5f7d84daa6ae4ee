"""
Groups of ranks, started by this process as the engine starts them: a JSON object a line in, one a line out.

{"folder", "parallel": {...}, "prompt": [ids], "max_tokens", "watched": n, "dtype": "float32", "engine": {...}}
-> {"tokens", "graph_buckets", "replays", "moments": [[name, calls of rules 0 .. n - 1 of the machine], ...]}, or {"fault": {...}, "moment"}.

The moments: load (device, group, weights), measure (profile run, cache, graphs), warm-up, prefill, decode.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from standin.machine import State

from ascendd.config.schema import EngineSection, InstanceConfig, ModelSection, ParallelSection
from ascendd.engine.loading import load
from ascendd.errors import AscenddError
from ascendd.ipc.messages import AddSequence, Fault, SamplingParams

_BY_PHASE = {"measuring memory": "measure", "warming up": "warm-up"}


def run(request: dict[str, Any], rules: Any) -> dict[str, Any]:
    """Start a group, serve the prompt to its end, and end the group."""
    moments: list[tuple[str, list[int]]] = []
    moment = "load"

    def enter(name: str) -> None:
        nonlocal moment
        if name != moment:
            moments.append((moment, [rules[index].calls for index in range(request["watched"])]))
            moment = name

    config = InstanceConfig(
        model=ModelSection(path=request["folder"], dtype=request.get("dtype", "float32")),
        engine=EngineSection(
            device="npu",
            max_num_seqs=4,
            kv_cache_memory="64MiB",
            max_num_batched_tokens=256,
            num_threads=1,
            **request.get("engine", {}),
        ),
        parallel=ParallelSection(**request["parallel"]),
    )
    core = None
    try:
        _, _, core = load(config, lambda phase, _fraction: enter(_BY_PHASE.get(phase, moment)))
        enter("prefill")
        params = SamplingParams(max_tokens=request["max_tokens"], temperature=0.0, ignore_eos=True)
        failed = core.add(AddSequence(1, request["prompt"], params))
        assert failed is None, failed
        tokens: list[int] = []
        while core.has_work:
            output = core.step()
            tokens += output.token_ids if output is not None else []
            if tokens:
                enter("decode")
        enter("end")
    except AscenddError as error:
        fault = Fault.from_error(error)
        exit_code = int(error.exit_code)
        return {"fault": {"code": fault.code, "message": fault.message, "facts": error.facts, "exit_code": exit_code},
                "moment": moment}  # fmt: skip
    finally:
        if core is not None:
            core.executor.close()
    report = core.report
    return {
        "tokens": tokens,
        "graph_buckets": report.num_graph_buckets,
        "replays": report.num_replays,
        "moments": moments,
    }


if __name__ == "__main__":
    with Path(os.environ["STANDIN_NPU_MACHINE"]).open("r+b") as file:
        state = State.from_buffer(mmap.mmap(file.fileno(), 0))
    for line in sys.stdin:
        print("\n" + json.dumps(run(json.loads(line), state.rules)), flush=True)
