"""GGUF files against the models they were made of, and the demo model against the reader of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from ascendd.artefact.convert import ConversionRequest, Converter
from ascendd.artefact.gguf_file import GgufFile, huggingface_name
from ascendd.artefact.layout import Cut, Source
from ascendd.artefact.manifest import read_manifest
from ascendd.artefact.rank_weights import open_rank_weights
from ascendd.config.model_facts import read_model_facts
from ascendd.errors import ModelUnsupported, WeightsCorrupt

pytestmark = pytest.mark.torch

Kind = gguf.GGMLQuantizationType
# Rows of 64 hold two blocks of Q8_0; the width of a head stays even.
WIDE = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 8, "num_key_value_heads": 2}


@pytest.mark.parametrize(
    ("kind", "dtype"), [(Kind.F32, torch.float32), (Kind.F16, torch.float16), (Kind.BF16, torch.bfloat16)]
)
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_plain_file_is_the_model(
    tmp_path: Path, save_model: Any, write_gguf: Any, family: str, kind: Kind, dtype: torch.dtype
) -> None:
    """Every tensor of a file without quantisation is that of the model, q and k in Hugging Face's row order."""
    model = save_model(tmp_path / "hf", family, tie_word_embeddings=False)
    path = write_gguf(tmp_path / "tiny.gguf", model, kind, family)

    with GgufFile(path) as source:
        source.check_complete(source.facts())
        assert source.main_dtype() == dtype
        assert source.quantisation == {}
        for name, tensor in model.state_dict().items():
            stored = dtype if tensor.ndim > 1 else torch.float32
            assert torch.equal(source.read(name), tensor.to(stored)), name


def test_quantised_file_is_close_to_the_model(tmp_path: Path, save_model: Any, write_gguf: Any) -> None:
    """Q8_0 comes back as float32 within half a step of each block."""
    model = save_model(tmp_path / "hf", **WIDE)
    path = write_gguf(tmp_path / "tiny.gguf", model, Kind.Q8_0)

    with GgufFile(path) as source:
        assert source.main_dtype() == torch.float32
        assert source.quantisation == {"Q8_0": 16}
        for name, tensor in model.state_dict().items():
            read = source.read(name)
            assert read.dtype == torch.float32
            assert torch.allclose(read, tensor, atol=float(tensor.abs().max()) / 127 * 0.51), name


@pytest.mark.parametrize("kind", [Kind.F32, Kind.BF16, Kind.Q8_0])
def test_part_is_that_of_the_whole(tmp_path: Path, save_model: Any, write_gguf: Any, kind: Kind) -> None:
    """Cutting before or after dequantising gives the same, on block borders and off them, for rows, columns and biases."""
    model = save_model(tmp_path / "hf", attention_bias=True, **WIDE)
    path = write_gguf(tmp_path / "tiny.gguf", model, kind)
    layer = "model.layers.1.self_attn."
    cuts = [
        Cut(Source(f"{layer}q_proj.weight", (64, 64)), 0, 16, 40),
        Cut(Source(f"{layer}k_proj.weight", (16, 64)), 0, 8, 16),
        Cut(Source(f"{layer}q_proj.bias", (64,)), 0, 16, 40),
        Cut(Source(f"{layer}o_proj.weight", (64, 64)), 1, 32, 64),
        Cut(Source(f"{layer}o_proj.weight", (64, 64)), 1, 8, 24),
        Cut(Source("model.embed_tokens.weight", (101, 64)), 0, 100, 101),
        Cut(Source("model.embed_tokens.weight", (101, 64)), 0, 101, 101),
    ]

    with GgufFile(path) as source:
        for cut in cuts:
            whole = source.read(cut.source.name)
            assert torch.equal(source.read_cut(cut), whole.narrow(cut.axis, cut.start, cut.stop - cut.start)), cut


def test_converted_shards_are_those_of_the_model(tmp_path: Path, save_model: Any, write_gguf: Any) -> None:
    """A GGUF file converted for two ranks equals the Hugging Face folder cut for two ranks."""
    model = save_model(tmp_path / "hf", **WIDE)
    path = write_gguf(tmp_path / "tiny.gguf", model)
    Converter(ConversionRequest(source=path, destination=tmp_path / "out", tensor_parallel_size=2)).run()

    for rank in range(2):
        ours = open_rank_weights(tmp_path / "out", read_model_facts(tmp_path / "out"), rank, 2)
        theirs = open_rank_weights(tmp_path / "hf", read_model_facts(tmp_path / "hf"), rank, 2)
        with ours, theirs:
            assert ours.names == theirs.names
            assert all(torch.equal(ours.read(name), theirs.read(name)) for name in ours.names)


def test_artefact_is_a_model_for_transformers_too(tmp_path: Path, save_model: Any, write_gguf: Any) -> None:
    """config.json out of GGUF metadata is one that transformers takes, with the sizes of the model."""
    from transformers import AutoConfig

    model = save_model(tmp_path / "hf", tie_word_embeddings=True)
    path = write_gguf(tmp_path / "tiny.gguf", model)
    Converter(ConversionRequest(source=path, destination=tmp_path / "out")).run()

    config = AutoConfig.from_pretrained(tmp_path / "out")

    keys = ("hidden_size", "num_hidden_layers", "num_key_value_heads", "head_dim", "vocab_size", "tie_word_embeddings")
    assert {key: getattr(config, key) for key in keys} == {key: getattr(model.config, key) for key in keys}


def test_unknown_tensor_is_refused(tmp_path: Path, save_model: Any, write_gguf: Any) -> None:
    """A tensor that the engine has no place for is an error under its own name."""
    model = save_model(tmp_path / "hf")
    add = {"blk.0.attn_q_norm.weight": np.ones(4, dtype=np.float32)}
    path = write_gguf(
        tmp_path / "tiny.gguf", model, add=lambda writer: [writer.add_tensor(*item) for item in add.items()]
    )

    with GgufFile(path) as source, pytest.raises(WeightsCorrupt, match=r"not part of .*blk\.0\.attn_q_norm\.weight"):
        source.check_complete(source.facts())


def test_llama3_factors_become_configuration(tmp_path: Path, save_model: Any, write_gguf: Any) -> None:
    """rope_freqs.weight is no weight of the model: it turns into rope_scaling."""
    from ascendd.artefact.gguf_config import llama3_rope_factors

    model = save_model(tmp_path / "hf")
    factors = llama3_rope_factors(10000.0, 4, 8.0)
    path = write_gguf(tmp_path / "tiny.gguf", model, add=lambda writer: writer.add_tensor("rope_freqs.weight", factors))

    with GgufFile(path) as source:
        source.check_complete(source.facts())
        scaling = source.facts().rope_scaling

    assert scaling is not None
    assert (scaling["rope_type"], scaling["factor"]) == ("llama3", pytest.approx(float(factors.max())))


@pytest.mark.parametrize("kept", [0, 3, 100, -200])
def test_truncated_file_is_corrupt(tmp_path: Path, save_model: Any, write_gguf: Any, kept: int) -> None:
    """A file cut anywhere is recognised when it is opened."""
    path = write_gguf(tmp_path / "tiny.gguf", save_model(tmp_path / "hf"))
    path.write_bytes(path.read_bytes()[:kept])

    with pytest.raises(WeightsCorrupt, match="not a whole GGUF file"):
        GgufFile(path)


def test_split_model_is_refused(tmp_path: Path, save_model: Any, write_gguf: Any) -> None:
    """One part of several is refused with the tool that merges them."""
    model = save_model(tmp_path / "hf")
    path = write_gguf(tmp_path / "tiny.gguf", model, add=lambda writer: writer.add_uint16("split.count", 3))

    with pytest.raises(ModelUnsupported, match="one of 3 parts") as caught:
        GgufFile(path)

    assert "llama-gguf-split --merge" in caught.value.remedy


def test_names_without_counterpart_stay() -> None:
    """Known names are translated, others come through as they are."""
    assert huggingface_name("blk.12.ffn_gate.bias") == "model.layers.12.mlp.gate_proj.bias"
    assert huggingface_name("output.weight") == "lm_head.weight"
    assert huggingface_name("blk.0.ssm_a") == "blk.0.ssm_a"


@pytest.mark.demo
@pytest.mark.timeout(300)
def test_demo_model_equals_the_reader_of_transformers(demo_folder: Path) -> None:
    """Every tensor of the demo model is bit for bit what transformers dequantises from the same file."""
    from transformers import AutoModelForCausalLM

    (path,) = demo_folder.glob("*.gguf")
    theirs = AutoModelForCausalLM.from_pretrained(demo_folder, gguf_file=path.name, dtype=torch.float32)

    state = theirs.state_dict()
    with GgufFile(path) as source:
        source.check_complete(source.facts())
        assert set(source.shapes) == set(state) - {"lm_head.weight"}
        for name in source.shapes:
            assert torch.equal(source.read(name), state[name]), name
        assert source.facts().rms_norm_eps == pytest.approx(theirs.config.rms_norm_eps, rel=1e-6)
        assert source.facts().rope_theta == theirs.config.rope_parameters["rope_theta"]


@pytest.mark.demo
def test_demo_artefact_holds_the_file(demo_folder: Path, demo_model: Path) -> None:
    """The converted demo model is the GGUF file, fused: float32, one rank, nothing lost."""
    (path,) = demo_folder.glob("*.gguf")

    manifest = read_manifest(demo_model)

    assert manifest.source.quantisation == {"Q4_1": 210, "Q8_0": 1}
    with GgufFile(path) as source, open_rank_weights(demo_model, read_model_facts(demo_model)) as weights:
        for name in ("model.embed_tokens.weight", "model.layers.29.mlp.down_proj.weight", "model.norm.weight"):
            assert torch.equal(weights.read(name), source.read(name).to(weights.read(name).dtype))
