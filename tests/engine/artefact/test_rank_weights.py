"""What the engine reads: fused tensors of one rank, out of both kinds of folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ascendd.artefact.convert import ConversionRequest, Converter
from ascendd.artefact.rank_weights import RankWeights, open_rank_weights
from ascendd.config.model_facts import read_model_facts
from ascendd.errors import ModelError, ModelNotFound, ModelUnsupported, WeightsCorrupt

pytestmark = pytest.mark.torch

MODELS = {
    "llama-untied": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-biased": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-sharded": ("llama", {"shards": True}),
    "llama-bfloat16": ("llama", {"dtype": torch.bfloat16}),
    "qwen2-untied": ("qwen2", {"tie_word_embeddings": False}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "llama-shared-kv": ("llama", {"num_key_value_heads": 1}),
}


def open_all(folder: Path, tp_size: int) -> list[RankWeights]:
    """Open every rank."""
    facts = read_model_facts(folder)
    return [open_rank_weights(folder, facts, rank, tp_size) for rank in range(tp_size)]


def convert(source: Path, destination: Path, **options: Any) -> Path:
    """Convert and return the artefact."""
    Converter(ConversionRequest(source=source, destination=destination, **options)).run()
    return destination


def expected_whole(state: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """The fused tensor of the whole model, from the tensors of transformers."""
    parts = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
    for fused, sources in parts.items():
        if f".{fused}." in name:
            return torch.cat([state[name.replace(fused, source)] for source in sources])
    return state[name]


def joined(ranks: list[RankWeights], name: str, state: dict[str, torch.Tensor], config: Any) -> torch.Tensor:
    """Put the shards of `name` together again, by the rules of tensor parallelism and not by those of the layout."""
    shards = [rank.read(name) for rank in ranks if name in rank.names]
    num_ranks, head_dim = len(ranks), config.hidden_size // config.num_attention_heads
    if "qkv_proj" in name:
        q_rows = config.num_attention_heads // num_ranks * head_dim
        kv_rows = max(config.num_key_value_heads // num_ranks, 1) * head_dim
        step = max(num_ranks // config.num_key_value_heads, 1)  # ranks that hold the same KV head
        q, k, v = zip(*(shard.split([q_rows, kv_rows, kv_rows]) for shard in shards), strict=True)
        for copies in (k, v):
            assert all(torch.equal(copies[rank], copies[rank // step * step]) for rank in range(num_ranks))
        return torch.cat([*q, *k[::step], *v[::step]])
    if "gate_up_proj" in name:
        gates, ups = zip(*(shard.chunk(2) for shard in shards), strict=True)
        return torch.cat([*gates, *ups])
    if "embed_tokens" in name or "lm_head" in name:
        padded = torch.cat(shards)
        assert not padded[config.vocab_size :].any()
        return padded[: config.vocab_size]
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        return torch.cat(shards, dim=1)
    if name.endswith(("o_proj.bias", "down_proj.bias")):
        assert len(shards) == 1
    assert all(torch.equal(shard, shards[0]) for shard in shards)
    return shards[0]


@pytest.mark.parametrize("is_converted", [False, True], ids=["folder", "artefact"])
@pytest.mark.parametrize("tp_size", [1, 3])
@pytest.mark.parametrize("model", MODELS)
def test_shards_make_up_the_model(
    tmp_path: Path, save_model: Any, model: str, tp_size: int, is_converted: bool
) -> None:
    """Every tensor of transformers comes back bit for bit from the ranks, out of either kind of folder."""
    family, changes = MODELS[model]
    saved = save_model(tmp_path / "hf", family, **changes)
    folder = tmp_path / "hf"
    if is_converted:
        folder = convert(folder, tmp_path / "artefact", tensor_parallel_size=tp_size)
    state = saved.state_dict()

    ranks = open_all(folder, tp_size)

    assert ("lm_head.weight" in ranks[0].names) is not saved.config.tie_word_embeddings
    for name in ranks[0].names:
        whole = joined(ranks, name, state, saved.config)
        assert whole.dtype == saved.dtype
        assert torch.equal(whole, expected_whole(state, name)), name
    for rank in ranks:
        rank.close()


def test_total_bytes_is_what_is_read(tmp_path: Path, save_model: Any) -> None:
    """The announced bytes are those of all tensors together, for both kinds of folder."""
    save_model(tmp_path / "hf", dtype=torch.bfloat16)
    artefact = convert(tmp_path / "hf", tmp_path / "artefact", tensor_parallel_size=3)

    for folder in (tmp_path / "hf", artefact):
        with open_rank_weights(folder, read_model_facts(folder), 2, 3) as weights:
            read = sum(weights.read(name).nbytes for name in weights.names)
            assert weights.total_bytes == read


def test_tensor_outlives_and_never_changes_its_file(tmp_path: Path, save_model: Any) -> None:
    """A tensor stays valid after close(), and writing to it does not reach the file."""
    save_model(tmp_path / "hf")
    artefact = convert(tmp_path / "hf", tmp_path / "artefact")
    facts = read_model_facts(artefact)
    with open_rank_weights(artefact, facts) as weights:
        tensor = weights.read("model.norm.weight")
        before = tensor.clone()

    tensor.add_(1)

    assert torch.equal(tensor, before + 1)
    with open_rank_weights(artefact, facts) as weights:
        assert torch.equal(weights.read("model.norm.weight"), before)


def test_artefact_of_another_size_is_refused(tmp_path: Path, save_model: Any) -> None:
    """An artefact for three ranks is not read as one rank: the error has both numbers and the command."""
    save_model(tmp_path / "hf")
    artefact = convert(tmp_path / "hf", tmp_path / "artefact", tensor_parallel_size=3)

    with pytest.raises(ModelError, match="tensor_parallel_size 3, the configuration asks for 1") as caught:
        open_rank_weights(artefact, read_model_facts(artefact))

    assert f"ascendd convert {tmp_path / 'hf'} {artefact}-tp1" in caught.value.remedy
    assert "--tensor-parallel-size 1" in caught.value.remedy


def test_truncated_artefact_is_refused(tmp_path: Path, save_model: Any) -> None:
    """A rank file that lost its end is named with both sizes, before a tensor is read."""
    save_model(tmp_path / "hf")
    artefact = convert(tmp_path / "hf", tmp_path / "artefact")
    rank_file = artefact / "rank-0-of-1.safetensors"
    rank_file.write_bytes(rank_file.read_bytes()[:-100])

    with pytest.raises(WeightsCorrupt, match=r"rank-0-of-1\.safetensors has \d+ bytes instead of"):
        open_rank_weights(artefact, read_model_facts(artefact))


def test_artefact_must_match_its_configuration(tmp_path: Path, save_model: Any) -> None:
    """Facts of another model do not fit the tensors, and the first that differs is named."""
    save_model(tmp_path / "hf")
    save_model(tmp_path / "other", intermediate_size=36)
    artefact = convert(tmp_path / "hf", tmp_path / "artefact")

    with pytest.raises(WeightsCorrupt, match=r"down_proj\.weight: shape \[36, 72\] stored, \[36, 36\] expected"):
        open_rank_weights(artefact, read_model_facts(tmp_path / "other"))


def test_size_that_does_not_fit_is_refused(tmp_path: Path, save_model: Any) -> None:
    """Two ranks cannot share nine heads."""
    save_model(tmp_path / "hf")

    with pytest.raises(ModelUnsupported, match="tensor_parallel_size 2"):
        open_rank_weights(tmp_path / "hf", read_model_facts(tmp_path / "hf"), 0, 2)


def test_folder_that_is_gone_is_not_found(tmp_path: Path, save_model: Any) -> None:
    """A path that does not exist is a model that is not there."""
    save_model(tmp_path / "hf")
    facts = read_model_facts(tmp_path / "hf")

    with pytest.raises(ModelNotFound, match="does not exist"):
        open_rank_weights(tmp_path / "gone", facts)
