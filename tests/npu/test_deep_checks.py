"""`ascendd doctor --deep` on a fake host whose chips are stand-ins: measured by the real torch_npu, held to a policy."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_machine import FakeMachine

from ascendd.config.load import load_file
from ascendd.preflight.context import CheckRequest
from ascendd.preflight.discover import find_checks, select
from ascendd.preflight.runner import run_checks

# Several processes import torch_npu in each: minutes, where other tests run beside them.
pytestmark = pytest.mark.timeout(900)

Doctor = Callable[..., dict[str, Any]]
SOC = "Ascend910B3"
# What one core of any test machine reaches.
EASY = {"matmul_tflops": 0.0001, "memory_gb_per_s": 0.5, "all_reduce_gb_per_s": 0.01}
SYNCHRONISE = "aclrtSynchronizeDeviceWithTimeout"


@pytest.fixture
def server(tmp_path: Path, standin_folder: Path) -> FakeMachine:
    """A fake host that has the stand-in's libraries where its CANN has them."""
    server = FakeMachine(tmp_path / "host", standin_folder / "lib/libstandin.so")
    # The host's paths and the real ones are the same here, since torch_npu itself knows nothing of a fake root.
    server.link(str(standin_folder / "lib"), str(standin_folder / "lib"))
    return server


@pytest.fixture
def doctor(server: FakeMachine, tmp_path: Path) -> Doctor:
    """Run the verb for an instance on chips 0 and 1; returns the JSON results by check."""

    def run(
        machine: Any,
        *only: str,
        speed: dict[str, float] | None = None,
        model: Path | None = None,
        patience: float | None = None,
    ) -> dict[str, Any]:
        environ = machine.environment(OMP_NUM_THREADS="1", HCCL_BUFFSIZE="1")
        server.setenv(
            FAKE_ACL_COUNT=None,
            LD_LIBRARY_PATH=f"{machine.standin}/lib",
            ASCEND_HOME_PATH=None,
            ASCEND_OPP_PATH=None,
            **{
                name: environ[name]
                for name in ("STANDIN_NPU_MACHINE", "PYTHONPATH", "OMP_NUM_THREADS", "HCCL_BUFFSIZE")
            },
        )
        server.write("etc/ascendd/policy.json", json.dumps({"chip_speed": {SOC: speed or EASY}}))
        config = tmp_path / "instance.yaml"
        config.write_text(
            f"model: {{path: {model or tmp_path}}}\nengine: {{device: npu}}\nparallel: {{devices: [0, 1], tensor_parallel_size: 2}}\n"
        )
        if patience is not None:
            json_of = msgspec.json.encode(load_file(config)).decode()
            request = CheckRequest(config_json=json_of, root=str(server.root), deep=True, patience=patience)
            results = run_checks(select(find_checks(), only, deep=True), request)
            return {result.check_id: result.to_json() for result in results}
        options = ["--deep", "--json", "--only", ",".join(only), "--config", str(config)]
        command = [sys.executable, "-m", "ascendd", "doctor", "--host-root", str(server.root), *options]
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd="/", timeout=800)
        assert done.stdout, done.stderr
        return {check["id"]: check for check in json.loads(done.stdout)["checks"]}

    return run


@pytest.mark.slow
def test_a_slow_chip_fails_with_its_numbers_and_the_sum_of_two_is_right(make_machine: Any, doctor: Doctor) -> None:
    """Chip 1 needs 0.3 s longer for each copy of memory; chip 0 and the all-reduce over both are as they should be."""
    machine = make_machine(num_devices=2)
    machine.slow("aten::copy_", 0.3, device=1)
    results = doctor(machine, "npu-speed", "hccl-all-reduce")
    speed, reduced = results["npu-speed"], results["hccl-all-reduce"]

    assert speed["verdict"] == "fail", speed
    assert speed["summary"].startswith(f"chip 1 ({SOC}): memory 0.1"), speed["summary"]
    assert "GB/s, " in speed["summary"]
    assert "of the 0.5 GB/s specified (/etc/ascendd/policy.json)" in speed["summary"]
    assert speed["remedy"]["runbook"] == "ASD-D08"
    assert [chip["chip"] for chip in speed["evidence"]["chips"]] == [0, 1]
    assert all(chip["wrong"] is None and chip["matmul_tflops"] > 0 for chip in speed["evidence"]["chips"])
    assert reduced["verdict"] == "pass", reduced
    assert reduced["summary"].startswith("2 chips add up 32 MiB rightly at ")
    assert reduced["summary"].endswith(" GB/s a chip")


@pytest.mark.slow
def test_sound_chips_pass_and_are_slow_beside_a_real_one(make_machine: Any, doctor: Doctor) -> None:
    """By the site's numbers they pass; by the published ones host arithmetic is far too slow for a 910B3."""
    machine = make_machine(num_devices=2)
    sound = doctor(machine, "npu-speed")["npu-speed"]
    published = doctor(machine, "npu-speed", speed={"all_reduce_gb_per_s": 1.0})["npu-speed"]

    assert sound["verdict"] == "pass", sound
    assert sound["summary"].startswith("2 chip(s): matmul ")
    assert published["verdict"] == "fail"
    assert "TFLOP/s, 0% of the 313 TFLOP/s specified" in published["summary"]


@pytest.mark.slow
def test_a_wrong_product_and_a_wrong_sum_are_found(make_machine: Any, doctor: Doctor) -> None:
    """One percent off in the product of matrices is told as that."""
    machine = make_machine(num_devices=2)
    machine.perturb("aten::mm", 1.01)
    speed = doctor(machine, "npu-speed")["npu-speed"]

    assert speed["verdict"] == "fail"
    assert "chip 0 computes wrongly: a product of " in speed["summary"]


@pytest.mark.slow
def test_a_dead_chip_is_named_by_both(make_machine: Any, doctor: Doctor) -> None:
    """The chip, the vendor's code, and the step of the group that it broke."""
    machine = make_machine(num_devices=2)
    machine.kill_device(1)
    results = doctor(machine, "npu-speed", "hccl-all-reduce")

    assert results["npu-speed"]["verdict"] == "fail"
    assert "chip 1: " in results["npu-speed"]["summary"]
    assert "507010" in results["npu-speed"]["summary"]
    assert results["hccl-all-reduce"]["summary"].startswith("chip 1 failed at `open the device`: ASD-D04")


@pytest.mark.slow
def test_chips_that_hang_are_killed_in_time_and_told(make_machine: Any, doctor: Doctor, server: FakeMachine) -> None:
    """The step at which each hung is named, the group's stuck rank too, and no process is left."""
    machine = make_machine(num_devices=2)
    machine.hang(SYNCHRONISE, device=1)
    machine.hang("aclrtSynchronizeStreamWithTimeout", device=1)
    began = time.monotonic()
    results = doctor(machine, "npu-speed", "hccl-all-reduce", patience=0.6)

    assert results["npu-speed"]["verdict"] == "error", results
    assert results["npu-speed"]["summary"].startswith("chip 1 hangs: `")
    assert results["npu-speed"]["summary"].endswith("` took more than 60 s")
    assert [chip["chip"] for chip in results["npu-speed"]["evidence"]["chips"]] == [0]
    assert results["hccl-all-reduce"]["verdict"] == "fail"
    assert "no answer within 54 s" in results["hccl-all-reduce"]["summary"]
    assert time.monotonic() - began < 300
    needle = machine.environment()["STANDIN_NPU_MACHINE"].encode()
    assert [path for path in Path("/proc").glob("[0-9]*/environ") if needle in _read(path)] == []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.slow
def test_the_kernels_are_proven_by_the_same_run(make_machine: Any, doctor: Doctor, qwen2_folder: Path) -> None:
    """Parity with the reference, with the model's own sizes; one kernel that is off is a warning with its name."""
    machine = make_machine(num_devices=2)
    sound = doctor(machine, "npu-kernels", model=qwen2_folder)["npu-kernels"]
    machine.perturb("npu::npu_swiglu", 1.01)
    off = doctor(machine, "npu-kernels", model=qwen2_folder)["npu-kernels"]

    assert sound["verdict"] == "pass", sound
    assert off["verdict"] == "warn"
    assert off["summary"].startswith("silu_and_mul is replaced by the reference: largest deviation")
