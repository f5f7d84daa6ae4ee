"""One rank of a group fails: it is named with its cause, nobody waits for ever, and nothing of the group is left."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil
import pytest
from structlog.testing import capture_logs

from ascendd.config.schema import EngineSection, HealthSection, InstanceConfig, ModelSection, ParallelSection
from ascendd.engine import loading
from ascendd.engine.exec import multiproc, rank_process
from ascendd.engine.exec.multiproc import MultiProcessExecutor
from ascendd.errors import AscenddError, DeviceOutOfMemory, EngineHung, ProtocolMismatch, WorkerLost
from ascendd.ipc.messages import AddSequence, SamplingParams

pytestmark = pytest.mark.timeout(240)

PROGRAM = Path(__file__).parent / "faulty_rank.py"
STEP_DEADLINE_S = 4.0
# Far beyond what is promised, 2 s after a death and 2 s after the deadline, for the sake of a busy machine; the figures
# are printed.
PATIENCE_S = 60.0

CASES = [
    ("raise", WorkerLost, "failed: RuntimeError: the lamp went out", True),
    ("sleep", EngineHung, "makes no progress", False),
    ("kill", WorkerLost, "was killed by SIGKILL", False),
    ("exit", WorkerLost, "exited with status 7", False),
    ("stop", EngineHung, "makes no progress", False),
    ("garble", ProtocolMismatch, "sent what cannot be read", False),
    ("outwait", EngineHung, "though no other rank has ended: rank 1", False),
    ("out-of-memory", DeviceOutOfMemory, "NPU out of memory", False),
]


def fail(folder: Path, what: str, grid: tuple[int, int], faulty_rank: int) -> tuple[AscenddError, float, list[int]]:
    """Serve with a group whose `faulty_rank` fails; return what the engine raised, after how long, and the pids."""
    patched = (sys.executable, str(PROGRAM), str(faulty_rank), what)
    config = InstanceConfig(
        model=ModelSection(path=str(folder), dtype="float32"),
        engine=EngineSection(device="cpu", max_num_blocks=32, max_num_seqs=4, num_threads=1),
        parallel=ParallelSection(tensor_parallel_size=grid[0], pipeline_parallel_size=grid[1]),
        health=HealthSection(step_deadline_s=STEP_DEADLINE_S),
    )
    with pytest.MonkeyPatch.context() as patch:
        plain = MultiProcessExecutor
        patch.setattr(loading, "MultiProcessExecutor", lambda *args, **kwargs: plain(*args, **kwargs, command=patched))
        _, _, core = loading.load(config, lambda _phase, _fraction: None)
    executor = core.executor
    assert isinstance(executor, MultiProcessExecutor)
    pids = [process.pid for process in executor.ranks]
    core.add(AddSequence(1, [1, 2, 3], SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)))
    began = time.monotonic()
    try:
        while core.has_work:
            began = time.monotonic()
            core.step()
    except AscenddError as error:
        took_s = time.monotonic() - began
        executor.close()
        return error, took_s, pids
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("what", "error_class", "said"),
    [
        pytest.param(what, error, said, id=what, marks=() if every_time else pytest.mark.slow)
        for what, error, said, every_time in CASES
    ],
)
def test_a_rank_that_fails_is_named_and_ends_the_group(tiny_model, what, error_class, said) -> None:
    """The error has the class and the rank of the cause, not of those who failed after it; no process is left."""
    folder = tiny_model("llama")[0]
    deadline_s = STEP_DEADLINE_S if error_class is EngineHung else 0.0

    with capture_logs() as logs:
        error, took_s, pids = fail(folder, what, (2, 1), 1)

    assert type(error) is error_class
    assert said in error.message
    assert "rank 1 (tensor 1 of 2)" in error.message
    assert error.facts["rank"] == 1
    assert took_s < deadline_s + PATIENCE_S
    assert not any(psutil.pid_exists(pid) for pid in pids)
    stacks = {line["of_rank"]: line["stacks"] for line in logs if line["event"] == "engine.rank_stacks"}
    if what == "sleep":
        assert "faulty_rank.py" in stacks[1]
        assert "all_reduce" in stacks[0]
    if what == "outwait":
        assert "rank 0 (tensor 0 of 2): all_reduce with the other ranks failed" in error.message
        assert "faulty_rank.py" in stacks[1]
    if what == "stop":
        assert "does not answer" in stacks[1]
        assert "all_reduce" in stacks[0]
    print(f"{what}: {error.code} after {took_s - deadline_s:.2f} s beyond {deadline_s:g} s; {error}")


@pytest.mark.slow
def test_a_stage_that_fails_is_named_by_its_stage(tiny_model) -> None:
    """In a pipeline the stages after it wait for activations; the cause is still the one that raised."""
    error, _, pids = fail(tiny_model("llama")[0], "raise", (2, 2), 1)

    assert type(error) is WorkerLost
    assert "rank 1 (tensor 1 of 2, stage 0 of 2) failed: RuntimeError: the lamp went out" in error.message
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.slow
def test_a_rank_that_hangs_at_the_start_is_named(tiny_model, monkeypatch) -> None:
    """The other one waits in the first collective of the profile run; nothing moves for health.load_deadline_s."""
    config = InstanceConfig(
        model=ModelSection(path=str(tiny_model("llama")[0]), dtype="float32"),
        engine=EngineSection(device="cpu", max_num_blocks=32, max_num_seqs=4, num_threads=1),
        parallel=ParallelSection(tensor_parallel_size=2),
        health=HealthSection(load_deadline_s=30.0),
    )
    plain, command = MultiProcessExecutor, (sys.executable, str(PROGRAM), "1", "sleep-in-profile")
    monkeypatch.setattr(
        loading, "MultiProcessExecutor", lambda *args, **kwargs: plain(*args, **kwargs, command=command)
    )
    with pytest.raises(EngineHung) as raised:
        loading.load(config, lambda _phase, _fraction: None)

    assert raised.value.facts["rank"] == 1
    assert "the start has stood still for 30 s, the deadline is 30 s: rank 1 (tensor 1 of 2)" in raised.value.message
    assert "waiting for it in a collective: rank 0" in raised.value.message


def test_a_worker_that_cannot_start_is_named(tiny_model) -> None:
    """A program that ends at once is told with its exit status, before any model is loaded."""
    config = InstanceConfig(
        model=ModelSection(path=str(tiny_model("llama")[0])), parallel=ParallelSection(tensor_parallel_size=2)
    )
    executor = MultiProcessExecutor(config, vocab_size=320, command=(sys.executable, "-c", "raise SystemExit(3)"))
    pids = [process.pid for process in executor.ranks]

    with pytest.raises(WorkerLost, match=r"rank \d \(tensor \d of 2\) exited with status 3"):
        executor.device_facts()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert multiproc.COMMAND == rank_process.COMMAND
