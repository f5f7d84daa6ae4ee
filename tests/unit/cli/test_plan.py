"""`ascendd plan`: the arithmetic of the memory, and the number that fits where the asked one does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ascendd.cli.app import main

# From the public config.json of Qwen/Qwen2-7B-Instruct.
QWEN2_7B = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "hidden_act": "silu",
    "max_position_embeddings": 32768, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "eos_token_id": 151645,
}  # fmt: skip


@pytest.fixture
def qwen2_7b(tmp_path: Path) -> Path:
    """A folder with the configuration of Qwen2-7B and no weights, which is all that a plan needs."""
    (tmp_path / "config.json").write_text(json.dumps(QWEN2_7B), encoding="utf-8")
    return tmp_path


def test_plan_shows_every_sum(qwen2_7b: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Weights, bytes per token and bytes per block are shown with the factors they are made of."""
    status = main(["plan", str(qwen2_7b), "--device-memory", "32GiB", "--block-size", "32"])

    said = capsys.readouterr().out
    assert status == 0
    assert "14.19 GiB = 7,615,616,512 parameters x 2 bytes" in said
    assert "57,344 bytes = 2 (K and V) x 28 layers x 4 KV heads x 128 x 2 bytes" in said
    assert "1,835,008 bytes = 32 tokens x 57,344 bytes" in said


def test_plan_adds_up(qwen2_7b: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Weights, reserve and KV cache together stay within what is usable, and one more block would not."""
    main(["plan", str(qwen2_7b), "--device-memory=32GiB", "--block-size", "32", "--json"])

    plan = json.loads(capsys.readouterr().out)
    used = plan["weights_bytes"] + plan["reserve_bytes"] + plan["kv_cache_bytes"]
    assert used <= plan["usable_bytes"] < used + plan["bytes_per_block"]
    assert plan["kv_cache_bytes"] == plan["num_blocks"] * 1_835_008


def test_blocks_that_do_not_fit_are_answered_with_the_number_that_does(
    qwen2_7b: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """65,536 blocks on 32 GiB are refused with 66; the remedy's own number is accepted."""
    base = ["plan", str(qwen2_7b), "--device-memory", "32GiB", "--block-size", "32", "--max-num-blocks"]
    status = main([*base, "65536"])
    said = capsys.readouterr().err
    fitting = said.split("--max-num-blocks ")[1].split(".")[0]

    assert status == 66
    assert "ASD-M05" in said
    assert main([*base, fitting]) == 0
    assert main([*base, str(int(fitting) + 1)]) == 66


def test_ranks_share_weights_and_heads(qwen2_7b: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Cut over four devices, each holds a quarter of the weights and one KV head."""
    main(["plan", str(qwen2_7b), "--device-memory", "32GiB", "--tensor-parallel-size", "4", "--json"])

    plan = json.loads(capsys.readouterr().out)
    assert plan["weights_bytes"] == 7_615_616_512 // 4 * 2
    assert plan["bytes_per_token"] == 57_344 // 4


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], "plan needs the folder of a model"),
        (["x", "--device-memory"], "--device-memory needs a size"),
        (["x", "--device-memory", "lots"], "--device-memory: 'lots' is not a whole number of bytes"),
        (["x", "--max-num-blocks", "many"], "--max-num-blocks needs a whole number"),
        (["x", "--no-such-flag"], "--no-such-flag"),
    ],
)
def test_wrong_usage_is_64(args: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A command line that is not understood ends with 64 and says what is missing."""
    status = main(["plan", *args])

    assert status == 64
    assert expected in capsys.readouterr().err
