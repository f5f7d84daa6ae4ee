"""The device runs out of memory at any step: tokens stay, nobody is lost, and a request that never fits fails alone."""

from __future__ import annotations

import pytest

from ascendd.engine.core import EngineCore
from ascendd.engine.exec.executor import InProcessExecutor
from ascendd.engine.runner.runner_report import RunnerReport
from ascendd.engine.sched.token_budget import CLEAN_STEPS, TokenBudget
from ascendd.errors import DeviceOutOfMemory, RequestNeverFits
from ascendd.ipc.messages import AddSequence, SamplingParams

PROMPTS = [[(seq * 17 + index) % 900 for index in range(size)] for seq, size in enumerate((5, 30, 70, 3))]


class Starved:
    """A runner that is out of memory at the calls of `fails_at`, and whenever `never` holds for a step."""

    def __init__(self, runner, fails_at=(), never=lambda _output: False) -> None:
        self._runner = runner
        self._fails_at = frozenset(fails_at)
        self._never = never
        self.vocab_size = runner.vocab_size
        self.report = RunnerReport()
        self.sizes: list[int] = []
        self.num_released = 0

    def execute(self, output):
        self.sizes.append(output.num_tokens)
        if len(self.sizes) in self._fails_at or self._never(output):
            raise DeviceOutOfMemory("NPU out of memory. Tried to allocate 24.00 MiB")
        return self._runner.execute(output)

    def release_memory(self) -> None:
        self.num_released += 1


def generate(core: EngineCore, prompts=PROMPTS, max_tokens: int = 9) -> tuple[list[list[int]], dict]:
    """Run all prompts to their end; return the tokens, and the fault of each that failed."""
    tokens: list[list[int]] = [[] for _ in prompts]
    faults = {}
    for index, prompt in enumerate(prompts):
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        assert core.add(AddSequence(index, prompt, params)) is None
    for _ in range(2000):
        if not core.has_work:
            return tokens, faults
        output = core.step()
        if output is not None:
            for seq_id, token_id in zip(output.seq_ids, output.token_ids, strict=True):
                tokens[seq_id].append(token_id)
        faults |= {failed.seq_id: failed.fault for failed in core.take_failed()}
        core.check_integrity()
    raise AssertionError("no end after 2000 steps")


@pytest.fixture
def make_core(make_engine_config, scripted_runner):
    def make(fails_at=(), never=lambda _output: False, **values) -> tuple[EngineCore, Starved]:
        config = make_engine_config(max_num_batched_tokens=32, max_num_seqs=4, **values)
        runner = Starved(scripted_runner(config.block_size), fails_at, never)
        return EngineCore(config, InProcessExecutor(runner), (1,)), runner

    return make


def counted(core: EngineCore) -> dict[str, float]:
    name = "ascendd_engine_out_of_memory_total"
    return {sample.labels[0]: sample.value for sample in core.metrics.samples() if sample.name == name}


def test_out_of_memory_at_any_step_leaves_every_token_as_it_was(make_core) -> None:
    """For every k, a run whose call number k fails gives the tokens of a run without a failure, and counts one."""
    core, runner = make_core()
    expected, _ = generate(core)
    num_calls = len(runner.sizes)
    assert num_calls > 8

    for failing in range(1, num_calls + 1):
        core, runner = make_core(fails_at=[failing])
        tokens, faults = generate(core)
        assert (failing, tokens, faults) == (failing, expected, {})
        assert counted(core) == {"shrunk": 1}
        assert runner.num_released == 1


@pytest.mark.parametrize("failing", [range(3, 6), range(1, 100, 2), range(1, 60, 3)])
def test_a_row_of_failures_is_survived_as_well(make_core, failing) -> None:
    """Steps shrink until they fit; nothing is lost on the way."""
    expected, _ = generate(make_core()[0])
    core, _runner = make_core(fails_at=failing)

    assert generate(core) == (expected, {})


def test_the_step_is_tried_again_with_half_its_tokens_at_most(make_core) -> None:
    """The second try of a step comes at once and has no more than half the tokens of the first."""
    core, runner = make_core(fails_at=[2])
    generate(core)

    assert runner.sizes[2] <= runner.sizes[1] // 2


def test_the_newest_sequence_goes_first(make_core) -> None:
    """Of a full batch of decodes the newer half waits; the oldest are served on without a pause."""
    core, runner = make_core()
    params = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
    for seq_id in range(4):
        core.add(AddSequence(seq_id, [1 + seq_id, 2, 3], params))
    core.step()
    runner._fails_at = frozenset({len(runner.sizes) + 1})
    output = core.step()

    assert output is not None
    assert output.seq_ids == [0, 1]
    assert (core.num_running, core.num_waiting) == (2, 2)


def test_the_budget_climbs_back_to_its_maximum(make_core) -> None:
    """After enough clean steps the limit is the configured one again, and the gauge says so."""
    core, _runner = make_core(fails_at=[2])
    generate(core, max_tokens=160)
    limit = next(s.value for s in core.metrics.samples() if s.name == "ascendd_engine_step_token_limit")

    assert limit == 32


def test_a_request_that_never_fits_fails_alone_with_a_400(make_core) -> None:
    """The sequence for which no step ever has memory ends with RequestNeverFits; all others get their tokens."""
    expected, _ = generate(make_core()[0])
    core, _runner = make_core(never=lambda output: any(chunk.sequence.seq_id == 2 for chunk in output.chunks))
    tokens, faults = generate(core)

    assert list(faults) == [2]
    assert isinstance(error := faults[2].to_error(), RequestNeverFits)
    assert error.http_status == 400
    assert [tokens[index] for index in (0, 1, 3)] == [expected[index] for index in (0, 1, 3)]
    assert counted(core)["request_failed"] == 1


def test_a_device_that_has_no_memory_for_anybody_ends_the_engine(make_core) -> None:
    """After three lone failures in a row the fault is the device's, and the process ends with it."""
    core, _runner = make_core(never=lambda _output: True)

    with pytest.raises(DeviceOutOfMemory):
        generate(core)


def test_with_several_ranks_nothing_is_tried_again(make_core) -> None:
    """Peers may sit inside a collective, so the first shortage ends the group."""
    core, runner = make_core(fails_at=[1], tensor_parallel_size=2)

    with pytest.raises(DeviceOutOfMemory):
        generate(core)
    assert len(runner.sizes) == 1


def test_a_budget_is_halved_and_rises_by_a_sixteenth() -> None:
    """64 -> 20 after a step of 40 tokens, then 4 more every CLEAN_STEPS clean steps, and never above 64."""
    budget = TokenBudget(64)
    budget.cut(40)
    limits = []
    for _ in range(CLEAN_STEPS * 12):
        budget.step_done()
        limits.append(budget.limit)

    assert limits[CLEAN_STEPS - 2 : CLEAN_STEPS] == [20, 24]
    assert limits[-1] == 64
    assert not budget.is_cut


def test_a_step_that_ends_the_engine_names_its_requests(make_core) -> None:
    """What the engine logs of its last step: the request ids and the tokens in it, of all that were asked for."""
    core, _runner = make_core()
    for seq_id in range(6):
        params = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
        core.add(AddSequence(seq_id, [1 + seq_id, 2, 3], params, request_id=f"req-{seq_id}"))
    idle = (core.step_request_ids, core.num_step_tokens)
    core.executor.collect = lambda: (_ for _ in ()).throw(RuntimeError("the device is gone"))
    with pytest.raises(RuntimeError, match="gone"):
        core.step()

    assert idle == ([], 0)
    assert core.step_request_ids == ["req-0", "req-1", "req-2", "req-3"]
    assert core.num_step_tokens == 12
