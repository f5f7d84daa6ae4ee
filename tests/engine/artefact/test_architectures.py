"""Convert, inspect and read back each architecture whose weights are laid out otherwise than Llama's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ascendd.artefact.rank_weights import open_rank_weights
from ascendd.cli.app import main
from ascendd.config.model_facts import facts_from_config, read_model_facts
from ascendd.errors import WeightsCorrupt

pytestmark = pytest.mark.torch

FAMILIES = ["qwen3", "phi3", "deepseek_v2", "deepseek_v2-lite"]
FUSED = {
    "qwen3": ["qkv_proj", "gate_up_proj"],
    "phi3": ["qkv_proj", "gate_up_proj"],
    "deepseek_v2": ["qkv_a_proj", "gate_up_proj"],
    "deepseek_v2-lite": ["gate_up_proj"],
}
SOURCES = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj"),
    "qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
}  # fmt: skip


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    """Name of the architecture, with `-lite` where queries have no latent."""
    return str(request.param)


@pytest.fixture
def source(family: str, tiny_model: Any) -> Path:
    """A tiny float32 checkpoint of the family, as transformers saves it."""
    base, _, lite = family.partition("-")
    return Path(tiny_model(base, **({"q_lora_rank": None} if lite else {}))[0])


def checkpoint(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors as safetensors itself reads them."""
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def whole(state: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """The fused tensor of the whole model."""
    if name in state:
        return state[name]
    fused = name.split(".")[-2]
    return torch.cat([state[name.replace(fused, part)] for part in SOURCES[fused]])


def test_converted_and_inspected(family: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each converts for two ranks; inspect shows its sizes, names what is fused, and finds every checksum right."""
    out = tmp_path / "out"
    assert main(["convert", "--without-tokenizer", str(source), str(out), "--tensor-parallel-size", "2"]) == 0
    capsys.readouterr()

    assert main(["inspect", str(out), "--verify", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    facts = read_model_facts(source)
    assert (found["architecture"], found["fused_operators"]) == (facts.architecture, FUSED[family])
    assert (found["verified"], found["num_parameters"]) == ({}, facts.num_parameters)
    assert (found["latent_dim"], found["num_experts"]) == ((32, 8) if "deepseek" in family else (None, None))
    assert main(["inspect", str(out)]) == 0
    assert ("all K and V out of a latent of 32" in capsys.readouterr().out) is ("deepseek" in family)


def test_one_rank_reads_the_tensors_of_the_checkpoint(source: Path, tmp_path: Path) -> None:
    """From the folder and from the artefact, every tensor comes back bit for bit, and their number is the model's."""
    assert main(["convert", "--without-tokenizer", str(source), str(tmp_path / "out")]) == 0
    state, facts = checkpoint(source), read_model_facts(source)

    for folder in (source, tmp_path / "out"):
        with open_rank_weights(folder, read_model_facts(folder)) as weights:
            assert sum(weights.read(name).numel() for name in weights.names) == facts.num_parameters
            for name in weights.names:
                assert torch.equal(weights.read(name), whole(state, name)), name


def test_two_ranks_make_up_the_model(family: str, source: Path, tmp_path: Path) -> None:
    """Cut for two ranks and put together by the rules of tensor parallelism, it is the checkpoint again."""
    assert (
        main(["convert", "--without-tokenizer", str(source), str(tmp_path / "out"), "--tensor-parallel-size", "2"]) == 0
    )
    state, facts = checkpoint(source), read_model_facts(source)
    ranks = [open_rank_weights(tmp_path / "out", facts, rank, 2) for rank in range(2)]

    for name in ranks[0].names:
        first, second = (rank.read(name) for rank in ranks)
        expected = whole(state, name)
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            joined = torch.cat((first, second), dim=1)
        elif ".qkv_proj." in name:
            sizes = [size * facts.head_dim // 2 for size in (facts.num_heads, facts.num_kv_heads, facts.num_kv_heads)]
            pairs = zip(first.split(sizes), second.split(sizes), strict=True)
            joined = torch.cat([part for pair in pairs for part in pair])
        elif ".gate_up_proj." in name:
            joined = torch.cat([part for pair in zip(first.chunk(2), second.chunk(2), strict=True) for part in pair])
        elif any(part in name for part in ("q_b_proj", ".q_proj", "kv_b_proj", "embed_tokens", "lm_head")):
            joined = torch.cat((first, second))
        else:  # norms, routers, projections into the latents: whole on both
            assert torch.equal(first, second)
            joined = first
        assert torch.equal(joined, expected), name
    for rank in ranks:
        rank.close()


def test_the_artefact_serves_the_tokens_of_its_source(
    make_core: Any, generate: Any, source: Path, tmp_path: Path
) -> None:
    """Fusing at conversion and fusing at start give the same model."""
    assert main(["convert", "--without-tokenizer", str(source), str(tmp_path / "out")]) == 0
    prompts = [[5, 6, 7, 8], list(range(40)), list(range(60))]

    assert generate(make_core(tmp_path / "out", max_num_blocks=24), prompts) == generate(
        make_core(source, max_num_blocks=24), prompts
    )


def test_a_missing_expert_is_named(tmp_path: Path, tiny_model: Any) -> None:
    """A checkpoint without one expert is refused with the names of its tensors."""
    from safetensors.torch import save_file

    folder = tiny_model("deepseek_v2")[0]
    state = {name: tensor for name, tensor in checkpoint(folder).items() if ".experts.5." not in name}
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())

    with pytest.raises(WeightsCorrupt, match=r"3 tensors are missing: .*layers\.1\.mlp\.experts\.5\.gate_proj\.weight"):
        open_rank_weights(tmp_path, facts_from_config(json.loads((tmp_path / "config.json").read_text())))
