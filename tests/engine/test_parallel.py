"""
One engine over several ranks gives the logits and tokens of one rank, on gloo, with worker processes as in service.

Logits are compared as log probabilities of the whole vocabulary, which is what a request can ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ascendd.artefact.convert import ConversionRequest, Converter
from ascendd.config.schema import EngineSection, InstanceConfig, ModelSection, ParallelSection
from ascendd.engine import loading
from ascendd.engine.core import EngineCore
from ascendd.engine.exec import multiproc
from ascendd.errors import ModelError, ModelUnsupported
from ascendd.ipc.messages import AddSequence, SamplingParams

pytestmark = pytest.mark.timeout(300)

PROMPTS = [[(index * 17 + start * 29) % 320 for index in range(size)] for start, size in enumerate((5, 30, 70, 3, 41))]
VOCABULARY = 320
GREEDY = {"temperature": 0.0}
SAMPLED = {"temperature": 0.8, "top_p": 0.9, "seed": 5}
# What each of the prompts asks for; all run in one batch, so that plain rows and others meet in a step.
WISHES: tuple[dict[str, object], ...] = (
    GREEDY, {**GREEDY, "logprobs": VOCABULARY}, SAMPLED, {**GREEDY, "prompt_logprobs": 3}, {**GREEDY, "logprobs": VOCABULARY},
)  # fmt: skip
FAMILIES = ("llama", "qwen2", "phi3", "deepseek_v2")
GRIDS = ((2, 1), (4, 1), (1, 2), (2, 2))
# The others take a minute or two together.
EVERY_TIME = (("qwen2", (2, 2)), ("deepseek_v2", (2, 1)))


def instance(folder: Path, grid: tuple[int, int], **engine: object) -> InstanceConfig:
    """Return the configuration of one engine over tensor x pipeline ranks."""
    values = {"device": "cpu", "max_num_blocks": 64, "max_num_seqs": 4, "max_num_batched_tokens": 32, "num_threads": 1}
    return InstanceConfig(
        model=ModelSection(path=str(folder), dtype="float32"),
        engine=EngineSection(**{**values, **engine}),  # type: ignore[arg-type]
        parallel=ParallelSection(tensor_parallel_size=grid[0], pipeline_parallel_size=grid[1]),
    )


def pack(source: Path, destination: Path, size: int) -> None:
    """Convert for `size` tensor ranks."""
    request = ConversionRequest(
        source=source, destination=destination, dtype="float32", tensor_parallel_size=size, needs_tokenizer=False
    )
    Converter(request, lambda _step: None).run()


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., EngineCore]]:
    """Start engines as the engine process does; their ranks end with the test."""
    monkeypatch.setattr("torch.set_num_interop_threads", lambda _num: None)  # once a process, and that is taken
    cores: list[EngineCore] = []

    def load(config: InstanceConfig) -> EngineCore:
        _, _, core = loading.load(config, lambda _phase, _fraction: None)
        cores.append(core)
        return core

    yield load
    for core in cores:
        core.executor.close()


def answers(core: EngineCore, prompts: list[list[int]] = PROMPTS, num_tokens: int = 9) -> tuple[list, list, dict]:
    """Run all prompts together; return tokens, rows of log probabilities by token id, and what prompts scored."""
    tokens: list[list[int]] = [[] for _ in prompts]
    rows: list[list[list[float]]] = [[] for _ in prompts]
    scored: dict[int, list[float]] = {}
    for index, prompt in enumerate(prompts):
        wish = SamplingParams(max_tokens=num_tokens, ignore_eos=True, **WISHES[index % len(WISHES)])  # type: ignore[arg-type]
        assert core.add(AddSequence(index, prompt, wish)) is None
    while core.has_work:
        output = core.step()
        if output is None:
            continue
        for place, seq_id in enumerate(output.seq_ids):
            tokens[seq_id].append(output.token_ids[place])
            told = output.logprobs[place] if output.logprobs else None
            if told is not None:
                rows[seq_id].append(
                    [value for _, value in sorted(zip(told.top_token_ids, told.top_logprobs, strict=True))]
                )
        for seq_id, entries in output.prompt_logprobs.items():
            scored.setdefault(seq_id, []).extend(entry.logprob for entry in entries)
        core.check_integrity()
    return tokens, rows, scored


@pytest.mark.parametrize(
    ("family", "grid"),
    [
        pytest.param(
            family,
            grid,
            id=f"{family}-tp{grid[0]}-pp{grid[1]}",
            marks=() if (family, grid) in EVERY_TIME else pytest.mark.slow,
        )
        for family in FAMILIES
        for grid in GRIDS
    ],
)
def test_ranks_together_give_what_one_gives(tiny_model, start, family, grid) -> None:
    """Tokens, greedy and sampled, are equal; every logit of the rows that asked is within 1e-4, and so are the prompts'."""
    folder = tiny_model(family, num_hidden_layers=3, num_key_value_heads=4 if family == "deepseek_v2" else 2)[0]
    expected_tokens, expected_rows, expected_scores = answers(start(instance(folder, (1, 1))))

    tokens, rows, scores = answers(start(instance(folder, grid)))

    assert tokens == expected_tokens
    assert [len(row) for row in rows] == [0, 9, 0, 0, 9]
    assert [row for sequence in rows for row in sequence] == [
        pytest.approx(row, abs=1e-4) for sequence in expected_rows for row in sequence
    ]
    assert scores[3] == pytest.approx(expected_scores[3], abs=1e-4)


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.parametrize("grid", [(8, 1), (1, 4)], ids=["tp8", "pp4"])
def test_many_ranks_give_what_one_gives(tiny_model, start, grid) -> None:
    """Eight tensor ranks with each KV head twice, and four stages, draw the tokens of one process."""
    folder = tiny_model("llama", num_attention_heads=8, num_key_value_heads=4, num_hidden_layers=4)[0]
    expected, _, _ = answers(start(instance(folder, (1, 1))))

    tokens, _, _ = answers(start(instance(folder, grid)))

    assert tokens == expected


@pytest.mark.parametrize("grid", [(2, 1), (1, 2)], ids=["tp2", "pp2"])
def test_a_pool_that_preempts_gives_the_same_tokens_over_ranks(tiny_model, start, grid) -> None:
    """Sequences that lose their blocks while others are in flight come again and end as they would have."""
    folder = tiny_model("llama", num_hidden_layers=3)[0]
    expected, _, _ = answers(start(instance(folder, (1, 1))), num_tokens=40)
    core = start(instance(folder, grid, max_num_blocks=9, max_num_seqs=4))

    tokens, _, _ = answers(core, num_tokens=40)

    assert tokens == expected
    assert core.num_preemptions > 0


@pytest.mark.demo
@pytest.mark.slow
@pytest.mark.parametrize("grid", [(3, 1), (1, 2)], ids=["tp3", "pp2"])
def test_the_demo_model_over_ranks(demo_folder, demo_reference, first_wrong_token, start, tmp_path, grid) -> None:
    """SmolLM2 with 9 heads and 3 KV heads runs on three tensor ranks, and on two stages, as transformers computes it."""
    from tokenizers import Tokenizer

    folder, model = demo_reference
    (source,) = demo_folder.glob("*.gguf")
    packed = folder
    if grid[0] > 1:
        packed = tmp_path / "packed"
        pack(source, packed, grid[0])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompt = tokenizer.encode("<|im_start|>user\nName the planets.<|im_end|>\n<|im_start|>assistant\n").ids
    core = start(instance(packed, grid, num_threads=1))

    (tokens,), _, _ = answers(core, [prompt], num_tokens=12)

    assert first_wrong_token(model, prompt, tokens) is None
    print(f"tp {grid[0]} x pp {grid[1]}: {tokenizer.decode(tokens)!r}")


@pytest.fixture
def _no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def start_one(*_args: object) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr(multiproc, "RankProcess", start_one)


@pytest.mark.usefixtures("_no_process")
def test_an_artefact_packed_for_another_size_is_refused_before_any_worker(tiny_model, tmp_path) -> None:
    """The refusal names both sizes and the command that packs it anew."""
    folder = tiny_model("llama")[0]
    pack(folder, tmp_path / "packed", 2)

    with pytest.raises(ModelError, match="packed for tensor_parallel_size 2, the configuration asks for 4") as caught:
        loading.load(instance(tmp_path / "packed", (4, 1)), lambda _phase, _fraction: None)

    assert f"ascendd convert {folder} {tmp_path}/packed-tp4" in str(caught.value.remedy)
    assert "--tensor-parallel-size 4" in str(caught.value.remedy)


@pytest.mark.usefixtures("_no_process")
@pytest.mark.parametrize(
    ("grid", "said"),
    [((3, 1), "sizes that do: 1, 2, 4"), ((1, 3), "pipeline_parallel_size 3 does not fit 2 layers")],
    ids=["tp3", "pp3"],
)
def test_a_size_that_does_not_fit_is_refused_before_any_worker(tiny_model, grid, said) -> None:
    """The refusal names the sizes that do."""
    folder = tiny_model("llama")[0]

    with pytest.raises(ModelUnsupported, match=said):
        loading.load(instance(folder, grid), lambda _phase, _fraction: None)
