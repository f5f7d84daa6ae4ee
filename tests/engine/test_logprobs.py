"""Logprobs of drawn and of prompt tokens against log_softmax of transformers' logits."""

from __future__ import annotations

import math

import pytest
import torch

from ascendd.device.kernels.cpu import CpuKernels
from ascendd.engine.runner.logprobs import token_logprobs
from ascendd.engine.runner.sampler import Sampler
from ascendd.engine.sched.scheduler import MAX_SCORED_TOKENS
from ascendd.engine.sequence import Sequence
from ascendd.ipc.messages import NO_TOKEN, AddSequence, FinishReason, SamplingParams, TokenLogprobs

PROMPTS = [
    torch.randint(0, 320, (size,), generator=torch.Generator().manual_seed(size)).tolist()
    for size in (1, 2, 16, 33, 70, 150)
]
BUSY = {"temperature": 0.9, "seed": 5, "presence_penalty": 0.5, "logit_bias": {3: 5.0}, "top_k": 40, "min_tokens": 2}


@pytest.fixture
def told():
    """Run prompts in one engine; return tokens, their logprobs, and those of the prompts, and finish reasons."""

    def run(core, prompts, max_tokens=6, **params):
        tokens = [[] for _ in prompts]
        drawn = [[] for _ in prompts]
        scored = [[] for _ in prompts]
        ends = [FinishReason.RUNNING for _ in prompts]
        for index, prompt in enumerate(prompts):
            sampling = SamplingParams(**{"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True, **params})
            assert core.add(AddSequence(index, prompt, sampling)) is None
        while core.has_work:
            output = core.step()
            core.check_integrity()
            if output is None:
                continue
            for seq_id, entries in output.prompt_logprobs.items():
                assert not tokens[seq_id], "prompt logprobs behind the first token"
                scored[seq_id] += entries
            for index, seq_id in enumerate(output.seq_ids):
                tokens[seq_id].append(output.token_ids[index])
                ends[seq_id] = FinishReason(output.finish[index])
                drawn[seq_id].append(output.logprobs[index] if output.logprobs else None)
        return tokens, drawn, scored, ends

    return run


def check(entry: TokenLogprobs, row: torch.Tensor, token_id: int, num_top: int) -> None:
    """The entry is that of `token_id` under the reference row of logits."""
    expected = torch.log_softmax(row, -1)
    assert entry.logprob == pytest.approx(float(expected[token_id]), abs=2e-4)
    values = expected.topk(max(num_top, 1)).values
    assert entry.top_logprobs == pytest.approx(values[:num_top].tolist(), abs=2e-4)
    # Tokens whose values are as near as two orders of summation differ may change places.
    assert len(set(entry.top_token_ids)) == num_top
    assert expected[entry.top_token_ids].tolist() == pytest.approx(values[:num_top].tolist(), abs=2e-4)
    surely, perhaps = (1 + int((expected > expected[token_id] + margin).sum()) for margin in (2e-4, -2e-4))
    assert surely <= entry.rank <= perhaps


@pytest.mark.parametrize("params", [{}, BUSY], ids=["greedy", "busy"])
def test_drawn_tokens_have_the_model_s_own_logprobs(make_core, tiny_model, told, params) -> None:
    """Raw log_softmax whatever penalties, bias and temperature did to the choice; rank and alternatives as well."""
    folder, reference = tiny_model("llama")
    tokens, drawn, scored, _ = told(make_core(folder, max_num_blocks=64), PROMPTS, logprobs=4, **params)

    assert scored == [[]] * len(PROMPTS)
    for prompt, ids, entries in zip(PROMPTS, tokens, drawn, strict=True):
        with torch.inference_mode():
            rows = reference(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 :]
        assert len(entries) == len(ids) == 6
        for row, token_id, entry in zip(rows, ids, entries, strict=False):
            check(entry, row, token_id, 4)


@pytest.mark.parametrize(
    "engine",
    [
        {"max_num_blocks": 64},
        {"max_num_blocks": 64, "max_num_seqs": 6, "max_num_batched_tokens": 7},
        {"max_num_blocks": 12, "max_model_len": 192, "max_num_seqs": 6, "max_num_batched_tokens": 8},
        {"max_num_blocks": 64, "block_size": 32, "enable_prefix_caching": False},
    ],
    ids=["roomy", "chunks of 7", "preempting", "no cache"],
)
def test_prompt_logprobs_of_any_schedule(make_core, tiny_model, told, engine) -> None:
    """One entry per prompt token but the first, equal to transformers', chunked, preempted, and twice over (case B38)."""
    folder, reference = tiny_model("llama")
    core = make_core(folder, **engine)
    scored_at_preemption = []
    preempt = core._scheduler._preempt

    def spy(sequence):
        if sequence.num_scored_tokens < sequence.num_prompt_tokens - 1:
            scored_at_preemption.append(sequence.num_scored_tokens)
        preempt(sequence)

    core._scheduler._preempt = spy
    runs = [told(core, PROMPTS, prompt_logprobs=2, logprobs=0, max_tokens=40) for _ in range(2)]
    core.check_integrity()

    assert core._kv.num_prefix_hits == 0
    if engine["max_num_blocks"] == 12:
        assert max(scored_at_preemption) > 0, "no prompt was preempted half scored"
    for tokens, drawn, scored, _ in runs:
        assert tokens == runs[0][0]
        for prompt, ids, entries, own in zip(PROMPTS, tokens, scored, drawn, strict=True):
            with torch.inference_mode():
                rows = reference(torch.tensor([prompt + ids])).logits[0]
            assert len(entries) == len(prompt) - 1
            for position, entry in enumerate(entries):
                check(entry, rows[position], prompt[position + 1], 2)
            for position, entry in enumerate(own):
                check(entry, rows[len(prompt) - 1 + position], ids[position], 0)


def test_scoring_beside_plain_sequences_changes_nothing_for_them(make_core, tiny_model, told, generate) -> None:
    """Plain neighbours get the tokens they have alone, hit the cache, and no logprobs of their own."""
    folder, _ = tiny_model("llama")
    expected = generate(make_core(folder, max_num_blocks=64), PROMPTS, 6)
    core = make_core(folder, max_num_blocks=64)
    core.add(AddSequence(100, PROMPTS[5], SamplingParams(max_tokens=6, temperature=0.0, prompt_logprobs=1)))
    core.add(AddSequence(101, PROMPTS[4], SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True, logprobs=1)))
    tokens = [[] for _ in PROMPTS]
    for index, prompt in enumerate(PROMPTS):
        core.add(AddSequence(index, prompt, SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)))
    columns = []
    while core.has_work:
        output = core.step()
        if output is not None:
            for index, seq_id in enumerate(output.seq_ids):
                if seq_id < 100:
                    tokens[seq_id].append(output.token_ids[index])
                    columns.append(output.logprobs[index] if output.logprobs else None)

    assert tokens == expected
    assert columns == [None] * len(columns)


def test_a_step_scores_a_bounded_number_of_tokens(make_core, tiny_model) -> None:
    """However many prompts are scored at once, a step computes logits for no more of their tokens than the bound."""
    folder, _ = tiny_model("llama")
    core = make_core(folder, max_num_blocks=64, max_num_batched_tokens=512)
    for index in range(3):
        core.add(AddSequence(index, PROMPTS[5], SamplingParams(max_tokens=1, prompt_logprobs=0)))
    sizes = []
    while core.has_work:
        output = core.step()
        sizes.append(sum(map(len, output.prompt_logprobs.values())) if output else 0)

    assert max(sizes) == MAX_SCORED_TOKENS
    assert sum(sizes) == 3 * (len(PROMPTS[5]) - 1)


def test_max_tokens_0_scores_a_prompt_that_fills_the_context(make_core, tiny_model, told) -> None:
    """Nothing is generated, the prompt may be as long as the context, and all blocks are free afterwards (case B29)."""
    folder, _ = tiny_model("llama")
    core = make_core(folder, max_num_blocks=10, max_model_len=160)
    prompt = (PROMPTS[5] * 2)[:160]
    tokens, _, scored, ends = told(core, [prompt, [7]], max_tokens=0, prompt_logprobs=1, logprobs=1)

    assert [len(entries) for entries in scored] == [159, 0]
    assert tokens == [[NO_TOKEN], [NO_TOKEN]]
    assert ends == [FinishReason.LENGTH] * 2
    assert core._kv.pool.num_free_blocks == 10


def test_rows_beyond_one_slice_and_infinite_logits() -> None:
    """40 rows in slices are those of log_softmax; a banned token is -inf and no NaN comes of it (case B37)."""
    logits = torch.randn(40, 50, generator=torch.Generator().manual_seed(2))
    logits[:, 10] = -math.inf
    token_ids = [10, *range(11, 50)]
    entries = token_logprobs(logits, token_ids, [50] * 40)
    expected = torch.log_softmax(logits, -1)

    assert entries[0].logprob == -math.inf
    assert [entry.logprob for entry in entries[1:]] == pytest.approx(
        expected[range(1, 40), token_ids[1:]].tolist(), abs=1e-5
    )
    assert entries[0].rank == 50
    assert entries[3].top_logprobs[-1] == -math.inf
    assert not any(math.isnan(value) for entry in entries for value in entry.top_logprobs)


def test_logprobs_are_taken_before_the_row_is_changed() -> None:
    """A row whose logits are changed tells those that were; rows that did not ask tell nothing."""
    logits = torch.zeros(3, 4)
    asks = SamplingParams(max_tokens=4, temperature=0.0, logprobs=0, logit_bias={2: 50.0})
    silent = SamplingParams(max_tokens=4, temperature=0.0, logit_bias={1: 50.0})
    sequences = [Sequence(number, [1], params, 0) for number, params in enumerate((asks, silent, asks))]
    token_ids, told_rows = Sampler(CpuKernels()).sample(logits, sequences)

    assert token_ids == [2, 1, 2]
    assert [entry and entry.logprob for entry in told_rows] == [pytest.approx(-math.log(4)), None, pytest.approx(-math.log(4))]  # fmt: skip
