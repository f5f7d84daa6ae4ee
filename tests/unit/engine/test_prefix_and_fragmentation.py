"""Two promises in numbers: what a shared prefix saves, and how little of the cache is empty."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ascendd.engine.kv.kv_cache_manager import KVCacheManager
from ascendd.engine.sched.output import ModelRunnerOutput
from ascendd.engine.sched.scheduler import Scheduler


@pytest.fixture(scope="module")
def bench(repo_root: Path) -> ModuleType:
    """The simulation that `make bench` prints, so that both measure the same."""
    path = repo_root / "tests" / "bench" / "bench_fragmentation.py"
    spec = importlib.util.spec_from_file_location("bench_fragmentation", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("block_size", "num_computed"), [(16, 16), (32, 16), (64, 16), (128, 16)])
def test_a_shared_prefix_is_computed_once(make_sequence, block_size: int, num_computed: int) -> None:
    """Of a second prompt with the same first 1,024 tokens only its own 16 are computed: 0.015 of the first."""
    scheduler = Scheduler(KVCacheManager(4096 // block_size, block_size), max_num_seqs=4, max_num_batched_tokens=512)
    shared = [index % 50 for index in range(1024)]
    computed = []
    for seq_id in (1, 2):
        scheduler.add(make_sequence(seq_id, prompt=[*shared, *[100 + seq_id] * 16], max_tokens=1))
        computed.append(0)
        while scheduler.has_work:
            output = scheduler.schedule()
            computed[-1] += output.num_tokens
            scheduler.update_from_output(output, ModelRunnerOutput([7] * len(output.sampling_chunks)))

    assert computed == [1040, num_computed]
    assert computed[1] <= 0.15 * computed[0]


def test_fragmentation_is_low_and_grows_with_the_block_size(bench: ModuleType) -> None:
    """Under 4 % at block 16 on the long mix; half a block per sequence, so twice the block is twice the share."""
    size = {"num": 60, "max_num_seqs": 16}
    ratios = {block_size: bench.measure(bench.LONG_MIX, block_size, **size).fragmentation for block_size in (16, 64)}

    assert 0.001 < ratios[16] < 0.04
    assert 3 < ratios[64] / ratios[16] < 5


def test_the_mix_has_the_means_it_promises(bench: ModuleType) -> None:
    """Prompts are 1,276 tokens and answers 256 on average, within the error of a sample."""
    sequences = bench.make_sequences(bench.LONG_MIX, 2000)

    assert sum(sequence.num_tokens for sequence in sequences) / 2000 == pytest.approx(1276, rel=0.05)
    assert sum(sequence.params.max_tokens for sequence in sequences) / 2000 == pytest.approx(256, rel=0.05)


def test_the_cheap_figure_is_the_bound_on_short_traffic(bench: ModuleType) -> None:
    """On the short mix the share stays near half a block over the tokens that a sequence holds."""
    measured = bench.measure(bench.SHORT_MIX, 16, num=100, max_num_seqs=16)

    assert 0.04 < measured.fragmentation < 0.12
    assert measured.fragmentation <= measured.highest < 0.5
