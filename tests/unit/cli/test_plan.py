"""`ascendd plan`: the arithmetic of the memory, and the number that fits where the asked one does not."""

from __future__ import annotations

import json
import re
import struct
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


def table(text: str) -> dict[str, tuple[str, str]]:
    """Return label -> (figure, sum) of the printed rows."""
    rows = (re.split(r"\s{2,}", line.strip()) for line in text.splitlines())
    return {label: (figure, how) for label, figure, how in rows}


ACCOUNT = [
    "--device-memory",
    "32GiB",
    "--reserve",
    "2GiB",
    "--block-size",
    "32",
    "--dtype",
    "fp16",
    "--max-model-len",
    "4096",
]


def test_plan_shows_every_sum(qwen2_7b: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every figure stands beside the factors it is made of; these are the right ones for Qwen2-7B on 32 GiB."""
    status = main(["plan", str(qwen2_7b), *ACCOUNT, "--max-num-seqs", "256"])

    rows = table(capsys.readouterr().out)
    assert status == 0
    assert rows["- weights"] == ("14.19 GiB", "7,615,616,512 parameters x 2 bytes")
    assert rows["- reserve"] == ("2.00 GiB", "given; activations, logits, runtime")
    assert rows["= room for KV"] == ("15.81 GiB", "9,253 blocks fit")
    assert rows["KV per token"] == ("57,344 bytes", "2 (K and V) x 28 layers x 4 KV heads x 128 x 2 bytes")
    assert rows["KV per block"] == ("1,835,008 bytes", "32 tokens x 57,344 bytes")
    assert rows["KV blocks"] == ("9,253", "15.81 GiB; default: all that fits")
    assert rows["tokens"] == ("296,096", "9,253 blocks x 32 tokens")
    assert rows["sequences"] == ("72", "of 4,096 tokens (128 blocks each) at once; max_num_seqs 256")


def test_16_gib_of_kv_hold_9362_blocks(qwen2_7b: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """16 GiB / 1,835,008 bytes, from the path of config.json alone, whatever lies beside it."""
    (qwen2_7b / "model.safetensors").write_bytes(b"no header")
    main(["plan", str(qwen2_7b / "config.json"), *ACCOUNT[:2], "--reserve", "1GiB", "--block-size", "32", "--kv-cache-memory", "16GiB", "--json"])  # fmt: skip

    plan = json.loads(capsys.readouterr().out)
    assert (plan["num_blocks"], plan["num_tokens"]) == (9362, 9362 * 32)
    assert plan["num_full_sequences"] == 9362 * 32 // 32768
    assert plan["weights_origin"] == "config.json"


def test_the_accounts_number_is_refused_with_the_one_that_fits(
    qwen2_7b: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """65,536 blocks, as the field report has it, do not fit 32 GiB; 9,253 do, and not one more."""
    base = ["plan", str(qwen2_7b), *ACCOUNT, "--max-num-blocks"]

    assert [main([*base, number]) for number in ("65536", "9253", "9254")] == [66, 0, 66]
    said = capsys.readouterr().err
    assert "65536 KV blocks of 1.75 MiB (engine.max_num_blocks) do not fit" in said
    assert said.count("Use at most --max-num-blocks 9253.") == 2


def test_weights_are_counted_in_their_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a folder has weights, their headers say how many there are."""
    config = {
        **QWEN2_7B,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "vocab_size": 100,
    }
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    header = json.dumps({"x": {"dtype": "F16", "shape": [1000, 7], "data_offsets": [0, 14000]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(14000))
    main(["plan", str(tmp_path), *ACCOUNT[:6], "--dtype", "fp32", "--json"])

    plan = json.loads(capsys.readouterr().out)
    assert (plan["weights_bytes"], plan["weights_origin"]) == (28_000, "its files")


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
        (["x", "--reserve", "0"], "--reserve: 0 is not more than 0 bytes"),
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
