"""Decode steps in captured buckets, on a device whose graphs are closures over the same static tensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ascendd.config.model_facts import read_model_facts
from ascendd.config.resolve import resolve
from ascendd.config.schema import EngineSection, InstanceConfig, ModelSection
from ascendd.device.base import AttentionContext, AttentionForm, KVCacheSpec
from ascendd.device.cpu import CpuDevice
from ascendd.device.kernels.block_major import BlockMajorReference
from ascendd.device.npu_faults import classify
from ascendd.engine.core import EngineCore
from ascendd.engine.exec.executor import InProcessExecutor
from ascendd.engine.runner.graph_runner import decode_buckets, fewer_buckets
from ascendd.engine.runner.model_runner import ModelRunner
from ascendd.errors import DeviceLost, DeviceOutOfMemory, GraphCaptureFailed

PROMPTS = [[1, 2, 3], list(range(5, 45)), [7] * 20, [9, 8], [4, 4, 4, 4]]


class TableKernels(BlockMajorReference):
    """Attention from a SequenceTable alone, row by row, as the fused operator reads it."""

    def attention_form(self, *, is_latent: bool) -> AttentionForm:
        return super().attention_form(is_latent=True) if is_latent else AttentionForm.SEQUENCE_TABLE

    def paged_attention(self, query, key, value, cache, context: AttentionContext, scale):
        out, begin = torch.empty_like(query), 0
        assert context.table is not None
        for end, length, blocks in zip(
            context.table.query_ends, context.table.kv_lengths, context.table.block_table, strict=True
        ):
            keys, values = (kv[:, :length] for kv in self.gather_blocks(cache, blocks.long(), query.shape[2]))
            repeats = query.shape[1] // keys.shape[0]
            new = query[begin:end].transpose(0, 1)
            mask = torch.arange(length)[None] <= torch.arange(length - (end - begin), length)[:, None]
            attended = self.attend(
                new,
                keys.repeat_interleave(repeats, 0),
                values.repeat_interleave(repeats, 0),
                attn_mask=mask,
                scale=scale,
            )
            out[begin:end] = attended.transpose(0, 1)
            begin = end
        return out


class Closures:
    """A GraphBackend that runs the captured work again; `failures` maps the number of a capture to its error."""

    def __init__(self, failures: dict[int, str | Exception]) -> None:
        self.failures = failures
        self.takes_lengths = True
        self.captured: list[int] = []
        self.replayed: list[list[int]] = []
        self.num_open = self.num_tried = 0

    def capture(self, work: Callable[[], torch.Tensor]):
        self.num_tried += 1
        if (text := self.failures.get(self.num_tried)) is not None:
            raise text if isinstance(text, Exception) else RuntimeError(text)
        result = work()
        self.captured.append(result.shape[0])
        self.num_open += 1
        outer = self

        class Graph:
            def replay(self, kv_lengths: list[int]) -> None:
                outer.replayed.append(kv_lengths)
                if outer.takes_lengths:
                    result.copy_(work())

        return Graph(), result

    def close(self) -> None:
        self.num_open = 0


class GraphedCpu(CpuDevice):
    """The CPU with the NPU's cache layout, its vendor errors and graphs."""

    def __init__(self, failures: dict[int, str | Exception] | None = None, *, takes_lengths: bool = True) -> None:
        super().__init__(pack=False)
        self.kernels = TableKernels()
        self.graphs = Closures(failures or {})
        self.graphs.takes_lengths = takes_lengths

    def allocate_kv(self, spec: KVCacheSpec) -> list[torch.Tensor]:
        shape = (2, spec.num_blocks, spec.block_size, spec.num_kv_heads, spec.head_dim)
        return [torch.zeros(shape, dtype=getattr(torch, spec.dtype)) for _ in range(spec.num_layers)]

    def open_graphs(self) -> Closures:
        return self.graphs

    def classify_fault(self, error):
        return classify(error)


@pytest.fixture
def graphed(tiny_model) -> Callable[..., tuple[EngineCore, GraphedCpu]]:
    """Build an engine with graphs over a tiny Qwen2."""

    def make(
        failures: dict[int, str | Exception] | None = None, *, takes_lengths: bool = True, **engine: object
    ) -> tuple[EngineCore, GraphedCpu]:
        folder, _ = tiny_model("qwen2")
        facts, device = read_model_facts(folder), GraphedCpu(failures, takes_lengths=takes_lengths)
        section = EngineSection(**{"max_num_seqs": 5, "kv_cache_memory": "4MiB", **engine})  # type: ignore[arg-type]
        config = resolve(
            InstanceConfig(model=ModelSection(path=str(folder), dtype="float32"), engine=section), facts, device.facts
        )
        runner = ModelRunner(config, facts, device)
        runner.capture_graphs()
        device.graphs.replayed.clear()  # those that prove a capture
        return EngineCore(config, InProcessExecutor(runner), facts.eos_token_ids), device

    return make


def test_replayed_decodes_give_the_tokens_of_eager_ones(graphed, generate) -> None:
    """Five prompts of different lengths in buckets of 1, 2, 4 and 5, beside the same engine without graphs."""
    core, device = graphed()
    eager, eager_device = graphed(enforce_eager=True)
    tokens = generate(core, PROMPTS, max_tokens=9)

    assert tokens == generate(eager, PROMPTS, max_tokens=9)
    assert core.report.num_replays == len(device.graphs.replayed) > 0
    assert eager.report.num_graph_buckets == len(eager_device.graphs.captured) == 0


def test_the_largest_bucket_is_captured_first(graphed) -> None:
    """So the smaller ones find room in its memory; there is one for each size of decode_buckets."""
    core, device = graphed()

    assert device.graphs.captured == [5, 4, 2, 1]
    assert core.report.num_graph_buckets == 4


def test_padding_is_one_token_in_the_null_block(graphed, generate) -> None:
    """
    Three rows in a bucket of four: the fourth has length 1, and no block but 0 and the sequences' own is written.

    Of block 0 the capture of the largest bucket wrote the first five slots.
    """
    core, device = graphed(enable_prefix_caching=False)
    caches = core.executor.runner._kv_caches
    generate(core, PROMPTS[:3], max_tokens=6)
    used = {block for block in range(1, caches[0].shape[1]) if caches[0][:, block].abs().sum() > 0}

    assert all(len(lengths) == 4 and lengths[3] == 1 for lengths in device.graphs.replayed)
    assert len(device.graphs.replayed) == core.report.num_replays == 5
    assert caches[0][:, 0, 0].abs().sum() > 0
    assert caches[0][:, 0, 5:].abs().sum() == 0
    assert len(used) == sum(-(-(len(prompt) + 5) // core.config.block_size) for prompt in PROMPTS[:3])


def test_a_step_with_a_prompt_runs_eagerly(graphed, generate) -> None:
    """A graph has one new token a row; a first token comes from a prompt, so one token takes no replay."""
    core, _ = graphed()
    generate(core, PROMPTS[:2], max_tokens=1)

    assert core.report.num_replays == 0


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("NPU function error: aclmdlRICaptureEnd, error code is 207008", [5, 2]),
        ("NPU function error: aclrtCreateStream, error code is 207005", [5, 2]),
        ("NPU out of memory. Tried to allocate 2.00 MiB (NPU 0; 1024.00 MiB total capacity)", [2, 1]),
    ],
)
def test_a_failed_capture_leaves_fewer_buckets(graphed, generate, capsys, text, left) -> None:
    """Memory gives up the larger half, streams every second bucket; a warning says so; tokens stay the same."""
    core, device = graphed({2: text})
    eager, _ = graphed(enforce_eager=True)

    assert device.graphs.captured == [5, *left]
    assert "ASD-D06" in (told := capsys.readouterr()).out + told.err
    assert core.report.num_graph_buckets == device.graphs.num_open == len(left)
    assert generate(core, PROMPTS, max_tokens=6) == generate(eager, PROMPTS, max_tokens=6)


def test_a_device_that_captures_nothing_serves_eagerly(graphed, generate) -> None:
    """Every capture fails: no bucket is left, no graph stays open, and answers come all the same."""
    core, device = graphed(dict.fromkeys(range(1, 99), "error code is 207008"))
    eager, _ = graphed(enforce_eager=True)

    assert core.report.num_graph_buckets == device.graphs.num_open == 0
    assert generate(core, PROMPTS, max_tokens=4) == generate(eager, PROMPTS, max_tokens=4)
    assert core.report.num_replays == 0


def test_a_device_that_cannot_capture_is_not_asked_again(graphed) -> None:
    """Fewer graphs would not help an old CANN: one attempt, then eager."""
    core, device = graphed({1: GraphCaptureFailed("PTA not found (ERR00008)", cannot_capture=True)})

    assert device.graphs.num_tried == 1
    assert core.report.num_graph_buckets == 0


def test_graphs_that_keep_the_lengths_of_their_capture_are_not_used(graphed, generate, capsys) -> None:
    """Each is replayed with other lengths beside an eager step: one that deviates is told, and none is left."""
    core, device = graphed(takes_lengths=False)
    eager, _ = graphed(enforce_eager=True)

    told = capsys.readouterr()
    assert "deviates by" in told.out + told.err
    assert device.graphs.num_tried == 1
    assert core.report.num_graph_buckets == device.graphs.num_open == 0
    assert generate(core, PROMPTS, max_tokens=4) == generate(eager, PROMPTS, max_tokens=4)


def test_another_failure_is_not_taken_for_one_of_capturing(graphed) -> None:
    """A device that is lost while it captures is lost; a shape error of ours is raised as it is."""
    with pytest.raises(DeviceLost):
        graphed({1: "ACL stream synchronize failed, error code:507010"})
    with pytest.raises(RuntimeError, match="shapes"):
        graphed({1: "mat1 and mat2 shapes cannot be multiplied"})


@pytest.mark.parametrize(
    ("max_num_seqs", "buckets"), [(1, [1]), (3, [1, 2, 3]), (64, [1, 2, 4, 8, 16, 24, 32, 48, 64])]
)
def test_buckets_end_with_the_largest_batch(max_num_seqs, buckets) -> None:
    """Dense where batches are small."""
    assert decode_buckets(max_num_seqs) == buckets


def test_there_are_few_buckets_and_none_above_256() -> None:
    """Each takes streams, of which a chip has some two thousand for all layers together."""
    assert decode_buckets(4096)[-1] == 256
    assert len(decode_buckets(4096)) <= 16


def test_fewer_buckets_end_at_none() -> None:
    """Both retreats get to eager in a few steps."""
    for fault in (DeviceOutOfMemory("x"), GraphCaptureFailed("x")):
        buckets, num_steps = decode_buckets(256), 0
        while buckets:
            buckets, num_steps = fewer_buckets(buckets, fault), num_steps + 1

        assert num_steps <= 5
