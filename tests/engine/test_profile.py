"""What a start measures: resident memory at its highest, the profile run, and the plan that it is held to."""

from __future__ import annotations

import mmap
from pathlib import Path

import msgspec
import pytest
import torch

from ascendd.config.model_facts import read_model_facts
from ascendd.config.resolve import resolve
from ascendd.config.schema import EngineSection, InstanceConfig, ModelSection
from ascendd.device.cpu import CpuDevice
from ascendd.device.resident_memory import resident_peak
from ascendd.engine import loading
from ascendd.engine.runner.model_runner import ModelRunner
from ascendd.errors import PlanDoesNotFit

MIB = 2**20


def touch(num_bytes: int) -> None:
    """Write to every page of a fresh mapping and give it back."""
    with mmap.mmap(-1, num_bytes) as pages:
        for offset in range(0, num_bytes, mmap.PAGESIZE):
            pages[offset] = 1


def test_the_peak_of_memory_that_came_and_went_is_seen() -> None:
    """64 MiB that are written and given back count, though nothing of them is left; doing nothing counts nothing."""
    assert 56 * MIB <= resident_peak(lambda: touch(64 * MIB)) <= 96 * MIB
    assert resident_peak(lambda: None) <= 4 * MIB


def test_without_the_right_to_reset_only_a_new_highest_point_counts(tmp_path: Path) -> None:
    """Where clear_refs cannot be written, growth below an earlier peak is not seen and never negative."""
    (tmp_path / "clear_refs").mkdir()
    status = tmp_path / "status"
    status.write_text("VmHWM:\t    9000 kB\nVmRSS:\t    5000 kB\n")

    assert resident_peak(lambda: None, tmp_path) == 0
    assert resident_peak(lambda: status.write_text("VmHWM: 9500 kB\nVmRSS: 100 kB\n") and None, tmp_path) == 500 * 1024
    status.write_text("")
    assert resident_peak(lambda: None, tmp_path) == 0


def make_runner(folder: Path, **engine: object) -> ModelRunner:
    facts, device = read_model_facts(folder), CpuDevice(pack=False)
    config = InstanceConfig(model=ModelSection(path=str(folder)), engine=EngineSection(**engine))  # type: ignore[arg-type]
    return ModelRunner(resolve(config, facts, device.facts), facts, device)


def test_a_profile_run_sees_its_activations(tiny_model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The widest steps are what is run, with the peak of the wider one as the result."""
    folder, _ = tiny_model("llama")
    runner = make_runner(folder, max_num_batched_tokens=128, max_num_seqs=4, max_num_blocks=64)
    widths: list[tuple[int, int]] = []
    run = runner._forward

    def forward(output):
        widths.append((output.num_tokens, len(output.sampling_chunks)))
        touch((8 if output.num_tokens > 4 else 2) * 16 * MIB)
        return run(output)

    monkeypatch.setattr(runner, "_forward", forward)
    facts = msgspec.structs.replace(runner._device.facts, max_profile_tokens=None)
    monkeypatch.setattr(CpuDevice, "facts", facts)
    peak = runner.profile()

    assert widths == [(128, 1), (4, 4)]
    assert 120 * MIB <= peak <= 192 * MIB
    assert "_kv_caches" not in vars(runner)


@pytest.mark.parametrize("family", ["qwen2", "phi3", "deepseek_v2"])
def test_tokens_after_a_profile_run_are_those_without(tiny_model, make_core, generate, family: str) -> None:
    """The profile leaves nothing behind: same rows, same cache, same tokens."""
    folder, _ = tiny_model(family)
    prompts = [[5, 6, 7], list(range(40)), [9] * 17]
    expected = generate(make_core(folder, max_num_blocks=40, max_num_seqs=2), prompts)
    core = make_core(folder, max_num_blocks=40, max_num_seqs=2)
    assert core.executor.runner.profile() >= 0
    core.executor.runner.set_num_blocks(40)

    assert generate(core, prompts) == expected


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
def test_the_cache_holds_what_was_asked_for(tiny_model, make_core, generate, dtype: str) -> None:
    """Each kv_cache_dtype serves every request to its end, in tensors of that dtype."""
    folder, _ = tiny_model("llama")
    core = make_core(folder, max_num_blocks=40, kv_cache_dtype=dtype)

    assert [len(ids) for ids in generate(core, [[1, 2, 3], [4] * 30])] == [8, 8]
    wanted = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[dtype]
    assert {cache.dtype for cache in core.executor.runner._kv_caches} == {wanted}


def _unheard(_phase: str, _fraction: float) -> None:
    """Stand in for the control link."""


@pytest.fixture
def _threads_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_num_interop_threads", lambda _num: None)  # once a process, and that is taken


@pytest.mark.usefixtures("_threads_stay")
def test_a_start_is_held_to_what_is_free_after_loading(tiny_model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that were asked for and no longer fit end the start with the number that does; a default shrinks to it."""
    folder, _ = tiny_model("llama")
    asked = InstanceConfig(
        model=ModelSection(path=str(folder)), engine=EngineSection(device="cpu", max_num_blocks=3000)
    )
    default = InstanceConfig(model=ModelSection(path=str(folder)), engine=EngineSection(device="cpu"))
    block_bytes = 2 * 2 * 2 * 16 * 4 * 16
    monkeypatch.setattr(ModelRunner, "profile", lambda _self: 100 * block_bytes)
    monkeypatch.setattr(loading, "fit_measured", _with_free(900 * block_bytes))

    with pytest.raises(PlanDoesNotFit, match=r"reserve \(measured at start\) leave room for 800 blocks"):
        loading.load(asked, _unheard)
    config, _, core = loading.load(default, _unheard)
    assert config.num_blocks == core.config.num_blocks == 800
    assert core.executor.runner._kv_caches[0].shape[2] == 801


def _with_free(free_bytes: int):
    real = loading.fit_measured
    return lambda plan, **kwargs: real(plan, **{**kwargs, "free_bytes": free_bytes})
