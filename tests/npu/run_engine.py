"""
Engines in this process, one after another: a JSON object a line on standard input, one a line on standard output.

{"folder", "device": "cpu" or "npu", "dtype", "prompts": [[ids]], "max_tokens", "engine": {...}}
-> {"tokens", "kernels": {name: passed}, "fused", "replays", "steps"} or {"fault": {code, message, facts}, "step"}.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch

from ascendd.config.model_facts import read_model_facts
from ascendd.config.resolve import resolve
from ascendd.config.schema import EngineSection, InstanceConfig, ModelSection
from ascendd.device.base import Device
from ascendd.device.detect import make_device
from ascendd.engine.core import EngineCore
from ascendd.engine.exec.executor import InProcessExecutor
from ascendd.engine.runner.model_runner import ModelRunner
from ascendd.errors import AscenddError
from ascendd.ipc.messages import AddSequence, SamplingParams


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Serve the prompts to their end."""
    step = -1  # -1: while starting
    device: Device | None = None
    try:
        device = make_device(request["device"])
        facts = read_model_facts(Path(request["folder"]))
        engine = {
            "max_num_seqs": 4,
            "kv_cache_memory": "64MiB",
            "max_num_batched_tokens": 64,
            **request.get("engine", {}),
        }
        config = InstanceConfig(
            model=ModelSection(path=request["folder"], dtype=request["dtype"]), engine=EngineSection(**engine)
        )
        resolved = resolve(config, facts, device.facts)
        runner = ModelRunner(resolved, facts, device)
        runner.capture_graphs()
        core = EngineCore(resolved, InProcessExecutor(runner), facts.eos_token_ids)
        tokens: list[list[int]] = [[] for _ in request["prompts"]]
        for index, prompt in enumerate(request["prompts"]):
            params = SamplingParams(max_tokens=request["max_tokens"], temperature=0.0, ignore_eos=True)
            failed = core.add(AddSequence(index, prompt, params))
            assert failed is None, failed
        step = 0
        while core.has_work:
            output = core.step()
            step += 1
            if output is not None:
                for seq_id, token_id in zip(output.seq_ids, output.token_ids, strict=True):
                    tokens[seq_id].append(token_id)
            for lost in core.take_failed():
                return {"fault": {"code": lost.fault.code, "message": lost.fault.message, "facts": {}}, "step": step}
            core.check_integrity()
    except (AscenddError, RuntimeError, MemoryError) as error:
        # As engine.main does for a step, and run_role for a start.
        fault = error if isinstance(error, AscenddError) else device.classify_fault(error) if device else None
        if fault is None:
            raise
        return {"fault": {"code": fault.code, "message": fault.message, "facts": fault.facts}, "step": step}
    return {
        "tokens": tokens,
        "kernels": {verdict.kernel: verdict.passed for verdict in runner.kernel_verdicts},
        "details": {verdict.kernel: verdict.detail for verdict in runner.kernel_verdicts},
        "fused": sorted(operator.value for operator in getattr(device.kernels, "fused", ())),
        "block_size": resolved.block_size,
        "graph_buckets": runner.report.num_graph_buckets,
        "replays": runner.report.num_replays,
        "steps": step,
    }


if __name__ == "__main__":
    for line in sys.stdin:
        answer = run(json.loads(line))
        gc.collect()  # the engine before is in cycles, and its memory is the device's
        if "torch_npu" in sys.modules and "fault" not in answer:
            torch.npu.empty_cache()  # a dead device would fail here, too
        print("\n" + json.dumps(answer), flush=True)
