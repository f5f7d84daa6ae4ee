"""LoRA adapters beside PEFT itself, alone and mixed in one batch, and kept apart in the prefix cache."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

from ascendd.engine.core import EngineCore
from ascendd.engine.sched.output import ScheduledChunk, SchedulerOutput
from ascendd.engine.sequence import Sequence, SequenceStatus
from ascendd.errors import AdapterInvalid, QueueFull
from ascendd.ipc.messages import AddSequence, SamplingParams

# PEFT asks transformers for a property under its old name.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
KINDS: dict[str, dict[str, object]] = {
    "all": {"r": 8, "lora_alpha": 16, "target_modules": ALL},
    "qv": {"r": 3, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"]},
    "rslora": {"r": 16, "lora_alpha": 8, "use_rslora": True, "target_modules": "all-linear"},
    "pattern": {"r": 4, "lora_alpha": 8, "target_modules": r".*layers\.1\..*(k_proj|down_proj)"},
    "one-layer": {"r": 64, "lora_alpha": 64, "target_modules": ["up_proj"], "layers_to_transform": [1]},
}
# Modules under other names, stored fused, or beside routed experts, which no adapter may change.
KINDS_OF_OTHERS: dict[str, dict[str, object]] = {
    "fused": {"r": 8, "lora_alpha": 16, "target_modules": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]},
    "latent": {
        "r": 8,
        "lora_alpha": 16,
        "target_modules": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"],
    },
}
OTHER_FAMILIES = [("qwen3", "all"), ("phi3", "fused"), ("deepseek_v2", "latent")]
GENERATOR = torch.Generator().manual_seed(3)
PROMPTS = [torch.randint(0, 320, (size,), generator=GENERATOR).tolist() for size in (5, 16, 33, 40, 70)]


@pytest.fixture(scope="session")
def make_adapter(tmp_path_factory: pytest.TempPathFactory, tiny_model) -> Callable[..., Path]:
    """Let PEFT write an adapter of random weights for a tiny model; keywords are LoraConfig's."""
    made: dict[str, Path] = {}

    def make(family: str, **config: object) -> Path:
        key = f"{family}-{sorted(config.items(), key=str)}"
        if key not in made:
            _, base = tiny_model(family)
            torch.manual_seed(len(made))
            model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **config))  # type: ignore[arg-type]
            for name, parameter in model.named_parameters():
                if "lora_" in name:
                    torch.nn.init.normal_(parameter, std=0.2)
            made[key] = tmp_path_factory.mktemp("adapter")
            model.save_pretrained(made[key])
            model.unload()
        return made[key]

    return make


@pytest.fixture
def reference(tiny_model) -> Callable[..., torch.Tensor]:
    """Logits [len, vocab] of PEFT's own model."""

    def logits(family: str, adapter: Path | None, token_ids: list[int]) -> torch.Tensor:
        _, base = tiny_model(family)
        model = base if adapter is None else PeftModel.from_pretrained(base, str(adapter)).eval()
        with torch.inference_mode():
            result = model(torch.tensor([token_ids])).logits[0]
        if adapter is not None:
            model.unload()
        return result

    return logits


@pytest.fixture
def make_lora_core(make_core, tiny_model) -> Callable[..., EngineCore]:
    """Build an engine of a family with adapters loaded: name -> folder."""

    def make(family: str, adapters: dict[str, Path] | None = None, **engine: object) -> EngineCore:
        options = {"max_num_blocks": 128, "enable_lora": True, **engine}
        core = make_core(tiny_model(family)[0], **options)
        for name, folder in (adapters or {}).items():
            core.load_adapter(name, str(folder))
        return core

    return make


def run(core: EngineCore, jobs: list[tuple[list[int], str]], max_tokens: int = 12) -> list[list[int]]:
    """Generate for (prompt, adapter) pairs sent at once, with the integrity check after each step."""
    tokens: list[list[int]] = [[] for _ in jobs]
    for index, (prompt, adapter) in enumerate(jobs):
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        assert core.add(AddSequence(index, prompt, params, adapter=adapter)) is None
    while core.has_work:
        output = core.step()
        if output is not None:
            for seq_id, token_id in zip(output.seq_ids, output.token_ids, strict=True):
                tokens[seq_id].append(token_id)
        core.check_integrity()
        core._adapters.pool.check_integrity()
    return tokens


@pytest.mark.parametrize(("family", "kind"), [*itertools.product(("llama", "qwen2"), KINDS), *OTHER_FAMILIES])
def test_logits_and_tokens_are_those_of_peft(make_lora_core, make_adapter, reference, family, kind) -> None:
    """Every kind of adapter gives PEFT's logits within 1e-3, chunked through the cache, and its greedy tokens."""
    folder = make_adapter(family, **(KINDS | KINDS_OF_OTHERS)[kind])
    core = make_lora_core(family, {"a": folder})
    adapter_id = core._adapters.pool.find("a").adapter_id
    token_ids = torch.randint(0, 320, (30,), generator=torch.Generator().manual_seed(9)).tolist()

    sequence = Sequence(seq_id=0, token_ids=[], params=SamplingParams(max_tokens=1), seed=0, adapter_id=adapter_id)
    sequence.status = SequenceStatus.RUNNING
    rows = []
    for position, token_id in enumerate(token_ids):
        sequence.token_ids.append(token_id)
        if position + 1 < 20:
            continue
        start = 0 if position + 1 == 20 else position
        assert core._kv.allocate_slots(sequence, position + 1)
        rows.append(
            core.executor.runner.logits(SchedulerOutput(0, [ScheduledChunk(sequence, start, position + 1 - start)]))[0]
        )
    core._kv.free(sequence)
    expected = reference(family, folder, token_ids)[19:]
    tokens = run(core, [(token_ids, "a")])[0]
    told = reference(family, folder, token_ids + tokens)[29:-1]

    assert torch.stack(rows).sub(expected).abs().max() < 1e-3
    assert reference(family, None, token_ids)[19:].sub(expected).abs().max() > 0.1, "the adapter changes nothing"
    assert tokens == told.argmax(dim=1).tolist()


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("engine", [{}, {"max_loras": 2}, {"max_num_batched_tokens": 16, "max_num_seqs": 16}], ids=str)
def test_mixed_in_one_batch_each_has_the_tokens_it_has_alone(make_lora_core, make_adapter, family, engine) -> None:
    """Several adapters and none share the batch, also with fewer slots than adapters or tiny chunks; nobody notices."""
    adapters = {name: make_adapter(family, **KINDS[name]) for name in ("all", "qv", "rslora")}
    jobs = [(prompt, name) for prompt in PROMPTS[:4] for name in ("", *adapters)]
    alone = make_lora_core(family, adapters, enable_prefix_caching=False)
    expected = [run(alone, [job])[0] for job in jobs]

    assert run(make_lora_core(family, adapters, **engine), jobs) == expected
    assert len({str(tokens) for tokens in expected}) == len(jobs)


def test_an_adapter_on_a_neighbour_changes_no_bit(make_lora_core, make_adapter) -> None:
    """The base row of a step has the very logits that it has beside a base neighbour."""
    core = make_lora_core("llama", {"a": make_adapter("llama", **KINDS["all"])})
    adapter_id = core._adapters.pool.find("a").adapter_id

    def logits_beside(adapter: int) -> torch.Tensor:
        chunks = []
        for index, (prompt, chosen) in enumerate([(PROMPTS[2], 0), (PROMPTS[3], adapter)]):
            sequence = Sequence(
                index + 1 + 10 * adapter, list(prompt), SamplingParams(max_tokens=1), 0, adapter_id=chosen
            )
            sequence.status = SequenceStatus.RUNNING
            assert core._kv.allocate_slots(sequence, len(prompt))
            chunks.append(ScheduledChunk(sequence, 0, len(prompt)))
        return core.executor.runner.logits(SchedulerOutput(0, chunks))

    beside_base, beside_adapter = logits_beside(0), logits_beside(adapter_id)

    assert torch.equal(beside_base[0], beside_adapter[0])
    assert not torch.equal(beside_base[1], beside_adapter[1])


def test_an_engine_with_lora_on_serves_the_base_model_unchanged(
    make_core, make_lora_core, tiny_model, generate
) -> None:
    """Wrapped projections without an adapter compute the bits of plain ones."""
    plain = make_core(tiny_model("qwen2")[0], max_num_blocks=128)

    assert run(make_lora_core("qwen2"), [(prompt, "") for prompt in PROMPTS]) == generate(plain, PROMPTS, 12)


def test_b80_base_adapter_base_share_no_block(make_lora_core, make_adapter) -> None:
    """B80: the same prompt under base, adapter, base: the base texts are equal and only the base hits the base's blocks."""
    core = make_lora_core("llama", {"a": make_adapter("llama", **KINDS["all"])})
    prompt = PROMPTS[4]
    hits, texts = [], []
    for adapter in ("", "a", "", "a"):
        before = core._kv.num_prefix_hits
        texts.append(run(core, [(prompt, adapter)])[0])
        hits.append(core._kv.num_prefix_hits - before)

    assert texts[0] == texts[2] != texts[1] == texts[3]
    assert hits == [0, 0, 64, 64]


def test_a_name_loaded_anew_shares_no_block_with_its_old_weights(make_lora_core, make_adapter) -> None:
    """A new version under the old name computes its prompts itself and gives the new weights' text."""
    old, new = make_adapter("llama", **KINDS["all"]), make_adapter("llama", **KINDS["rslora"])
    core = make_lora_core("llama", {"a": old})
    first = run(core, [(PROMPTS[4], "a")])[0]
    core.unload_adapter("a")
    core.load_adapter("a", str(new))
    hits = core._kv.num_prefix_hits
    second = run(core, [(PROMPTS[4], "a")])[0]

    assert core._kv.num_prefix_hits == hits
    assert second == run(make_lora_core("llama", {"b": new}), [(PROMPTS[4], "b")])[0] != first


def test_preemption_does_not_change_an_adapter_s_tokens(make_lora_core, make_adapter) -> None:
    """A pool too small for all at once recomputes each sequence with its own adapter."""
    adapters = {name: make_adapter("llama", **KINDS[name]) for name in ("all", "qv")}
    jobs = [(prompt, name) for prompt in PROMPTS[2:4] for name in ("", *adapters)]
    expected = run(make_lora_core("llama", adapters), jobs, 40)
    core = make_lora_core("llama", adapters, max_num_blocks=8, max_model_len=120)

    assert run(core, jobs, 40) == expected
    assert core.num_preemptions > 0


def test_unloading_lets_running_sequences_end_with_their_weights(make_lora_core, make_adapter) -> None:
    """The name is gone at once, the sequence is not disturbed, and the memory is free once it has ended."""
    core = make_lora_core("llama", {"a": make_adapter("llama", **KINDS["all"])})
    expected = run(core, [(PROMPTS[1], "a")])[0]
    params = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
    assert core.add(AddSequence(7, PROMPTS[1], params, adapter="a")) is None
    first = core.step()
    core.unload_adapter("a")
    failed = core.add(AddSequence(8, PROMPTS[1], params, adapter="a"))
    held = len(core.executor.runner._lora._adapters)
    tokens = [*first.token_ids]
    while core.has_work:
        tokens += core.step().token_ids

    assert tokens == expected
    assert failed is not None
    assert failed.fault.code == "ASD-R05"
    assert (held, len(core.executor.runner._lora._adapters)) == (1, 0)


def test_evicted_adapters_are_read_again(make_lora_core, make_adapter) -> None:
    """With room for two in host memory five names are served in turns, each with its own tokens."""
    folders = {name: make_adapter("llama", **KINDS[name]) for name in KINDS}
    jobs = [(PROMPTS[0], name) for name in KINDS]
    expected = run(make_lora_core("llama", folders), jobs)
    core = make_lora_core("llama", folders, max_cpu_loras=2, max_loras=2)

    assert [run(core, [job])[0] for job in jobs * 2] == expected * 2
    assert len(core.executor.runner._lora._adapters) == 2


def test_with_all_places_in_use_one_more_adapter_is_told_to_come_again(make_lora_core, make_adapter) -> None:
    """An adapter that sequences use is never evicted; who needs its place gets a retryable error, and nothing is lost."""
    folders = {name: make_adapter("llama", **KINDS[name]) for name in ("all", "qv")}
    core = make_lora_core("llama", {"all": folders["all"]}, max_cpu_loras=1, max_loras=1)
    params = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
    assert core.add(AddSequence(1, PROMPTS[0], params, adapter="all")) is None
    with pytest.raises(QueueFull, match="max_cpu_loras"):
        core.load_adapter("qv", str(folders["qv"]))
    while core.has_work:
        core.step()
    core.load_adapter("qv", str(folders["qv"]))

    assert core.adapter_names == ("all", "qv")
    assert len(core.executor.runner._lora._adapters) == 1


def _edit(folder: Path, **changes: object) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / "adapter_model.safetensors")
    change(tensors)
    save_file(tensors, folder / "adapter_model.safetensors")


Q = "base_model.model.model.layers.0.self_attn.q_proj"
BAD: list[tuple[Callable[[Path], object], list[str]]] = [
    (lambda f: (f / "adapter_config.json").unlink(), ["holds no adapter_config.json"]),
    (lambda f: (f / "adapter_config.json").write_text("{"), ["adapter_config.json cannot be read"]),
    (lambda f: (f / "adapter_model.safetensors").unlink(), ["adapter_model.safetensors cannot be read"]),
    (lambda f: (f / "adapter_model.safetensors").write_bytes(b"x" * 9), ["is not a safetensors file"]),
    (lambda f: _edit(f, r=65), ["rank 65 is more than engine.max_lora_rank (64)"]),
    (lambda f: _edit(f, r=0), ["r is 0"]),
    (lambda f: _edit(f, r=4), ["model.layers.0.self_attn.q_proj.lora_A has shape [8, 64], expected [4, 64]"]),
    (lambda f: _edit(f, lora_alpha=None), ["lora_alpha is None"]),
    (lambda f: _edit(f, use_dora=True), ["use_dora is set"]),
    (lambda f: _edit(f, modules_to_save=["lm_head"]), ["modules_to_save is set"]),
    (lambda f: _edit(f, rank_pattern={"q_proj": 4}), ["rank_pattern is set"]),
    (lambda f: _edit(f, bias="all"), ["bias all is not supported"]),
    (lambda f: _edit(f, peft_type="IA3"), ["peft_type IA3"]),
    (lambda f: _edit(f, init_lora_weights="pissa"), ["init_lora_weights pissa"]),
    (lambda f: _edit(f, target_modules=["q_proj"]), ["is not among target_modules (q_proj)"]),
    (lambda f: _edit(f, target_modules=[*ALL, "w1"]), ["target_modules names w1"]),
    (lambda f: _edit(f, target_modules=[]), ["target_modules is []"]),
    (
        lambda f: _edit_tensors(f, lambda t: t.pop(f"{Q}.lora_B.weight")),
        ["model.layers.0.self_attn.q_proj has no lora_B.weight"],
    ),
    (
        lambda f: _edit_tensors(f, lambda t: [t.pop(f"{Q}.lora_{x}.weight") for x in "AB"]),
        ["model.layers.0.self_attn.q_proj is missing, which target_modules names"],
    ),
    (
        lambda f: _edit_tensors(f, lambda t: t.update({f"{Q}.lora_B.weight": torch.ones(32, 8)})),
        ["model.layers.0.self_attn.q_proj.lora_B has shape [32, 8], expected [64, 8]"],
    ),
    (
        lambda f: _edit_tensors(f, lambda t: t.update({"base_model.model.lm_head.lora_A.weight": torch.ones(8, 64)})),
        ["lm_head is no module of this model that an adapter can change", "q_proj"],
    ),
    (
        lambda f: _edit_tensors(f, lambda t: t.update({f"{Q}.lora_magnitude_vector": torch.ones(64)})),
        ["is not a LoRA weight"],
    ),
    (
        lambda f: _edit_tensors(f, lambda t: t.update({f"{Q}.lora_A.weight": torch.full((8, 64), torch.inf)})),
        ["holds values that float32 cannot hold"],
    ),
]


@pytest.mark.parametrize(("damage", "words"), BAD, ids=[case[1][0][:40] for case in BAD])
def test_a_bad_adapter_is_refused_by_name_and_harms_nobody(
    make_lora_core, make_adapter, tmp_path, damage, words
) -> None:
    """Rank, target, shape and kind are checked at load; module, found and expected are named; the base goes on."""
    folder = tmp_path / "bad"
    shutil.copytree(make_adapter("llama", **KINDS["all"]), folder)
    damage(folder)
    core = make_lora_core("llama")
    with pytest.raises(AdapterInvalid) as caught:
        core.load_adapter("a", str(folder))

    assert all(word in caught.value.message for word in words), caught.value.message
    assert core.adapter_names == ()
    assert len(run(core, [(PROMPTS[0], "")])[0]) == 12


@pytest.mark.parametrize("name", ["", " a", "a\nb", "x" * 129])
def test_names_that_would_not_print_are_refused(make_lora_core, make_adapter, name) -> None:
    """A name stands in logs, answers and lists."""
    with pytest.raises(AdapterInvalid, match="printable"):
        make_lora_core("llama", {name: make_adapter("llama", **KINDS["qv"])})


def test_a_name_is_loaded_once(make_lora_core, make_adapter) -> None:
    """A second adapter under a name that is taken, or under the model's own, is refused."""
    folder = make_adapter("llama", **KINDS["qv"])
    core = make_lora_core("llama", {"a": folder})
    for name in ("a", core.config.model_name):
        with pytest.raises(AdapterInvalid):
            core.load_adapter(name, str(folder))

    assert core.adapter_names == ("a",)
