"""`ascendd convert` and `ascendd inspect` as an operator runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ascendd.artefact.convert import Converter
from ascendd.cli.app import main

pytestmark = pytest.mark.torch


@pytest.fixture
def source(tmp_path: Path, save_model: Any) -> Path:
    """A tiny bfloat16 Llama."""
    save_model(tmp_path / "hf", dtype=torch.bfloat16)
    return tmp_path / "hf"


def test_convert_and_inspect(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A converted model is summed up in one line, and inspect shows all that an operator asks for."""
    assert (
        main(["convert", "--without-tokenizer", str(source), str(tmp_path / "out"), "--tensor-parallel-size", "3"]) == 0
    )
    captured = capsys.readouterr()
    assert captured.out.startswith(f"wrote {tmp_path / 'out'}: LlamaForCausalLM, ")
    assert "in 3 rank files" in captured.out
    assert "converting: 100 %" in captured.err

    assert main(["inspect", str(tmp_path / "out"), "--verify"]) == 0

    shown = capsys.readouterr().out
    lines = {line.split("  ")[0]: line for line in shown.splitlines()}
    for label, value in (
        ("architecture", "LlamaForCausalLM"),
        ("fused operators", "qkv_proj, gate_up_proj"),
        ("dtype", "bfloat16"),
        ("tensor parallel", "3"),
        ("checksums", "ok, 5 files read"),
        ("context", "64 tokens"),
        ("source", str(source)),
    ):
        assert value in lines[label]
    assert shown.count("bytes  ok") == 3


def test_inspect_finds_a_changed_byte(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--verify marks the file BAD and exits 66; without it sizes alone are compared and say so."""
    main(["convert", "--without-tokenizer", str(source), str(tmp_path / "out")])
    rank_file = tmp_path / "out" / "rank-0-of-1.safetensors"
    rank_file.write_bytes(rank_file.read_bytes()[:-1] + b"\x7f")
    capsys.readouterr()

    assert main(["inspect", str(tmp_path / "out")]) == 0
    assert "--verify reads them" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "out"), "--verify"]) == 66

    captured = capsys.readouterr()
    assert "bytes  BAD" in captured.out
    assert "ASD-M04" in captured.err
    assert "remedy: Convert or copy the model again." in captured.err


def test_json_is_for_programs(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both verbs print one JSON document on standard output; progress goes to standard error."""
    assert (
        main(["convert", "--without-tokenizer", str(source), str(tmp_path / "out"), "--dtype", "float16", "--json"])
        == 0
    )
    manifest = json.loads(capsys.readouterr().out)
    assert (manifest["dtype"], manifest["tensor_parallel_size"]) == ("float16", 1)

    assert main(["inspect", str(tmp_path / "out"), "--verify", "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["verified"]) == ("artefact", {})
    assert found["weight_files"] == {"rank-0-of-1.safetensors": manifest["files"]["rank-0-of-1.safetensors"]["bytes"]}


def test_inspect_knows_other_folders(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A Hugging Face folder is shown too, and called what it is."""
    assert main(["inspect", str(source)]) == 0

    shown = capsys.readouterr().out
    assert "Hugging Face folder, not converted" in shown
    assert "model.safetensors" in shown
    assert "none: text cannot be served without one" in shown


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["{tmp}/absent", "{tmp}/out"], 66, "does not exist"),
        (["{tmp}/hf", "{tmp}/hf"], 64, "source and destination"),
        (["{tmp}/hf", "{tmp}/out", "--tensor-parallel-size", "2"], 66, "sizes that do: 1, 3, 9"),
        (["{tmp}/hf", "{tmp}/out", "--tensor-parallel-size", "0"], 64, "tensor-parallel-size"),
        (["{tmp}/hf", "{tmp}/out", "--dtype", "int4"], 64, "int4"),
        (["{tmp}/hf"], 64, "DST"),
    ],
)
def test_wrong_use_has_its_exit_code(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    """Wrong usage is 64 and a model that cannot be converted 66, both with a message and nothing written."""
    assert source.is_dir()

    assert main(["convert", *(argument.format(tmp=tmp_path) for argument in arguments)]) == code

    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_interrupt_says_how_to_go_on(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the middle exits 130, names the folder that keeps the work, and the next run finishes it."""
    real_write = Converter._write_rank

    def interrupted(converter: Converter, layout_source: Any, layout: Any, rank: int, *rest: Any) -> None:
        if rank == 2:
            os.kill(os.getpid(), signal.SIGINT)
        real_write(converter, layout_source, layout, rank, *rest)

    monkeypatch.setattr(Converter, "_write_rank", interrupted)
    command = ["convert", "--without-tokenizer", str(source), str(tmp_path / "out"), "--tensor-parallel-size", "3"]
    assert main(command) == 130
    assert f"finished files are kept in {tmp_path / 'out.partial'}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    monkeypatch.undo()

    assert main(command) == 0

    out = capsys.readouterr().out
    assert "reused from an earlier run: rank-0-of-3.safetensors, rank-1-of-3.safetensors" in out


@pytest.mark.system
@pytest.mark.demo
def test_memory_stays_far_below_the_model(demo_folder: Path, tmp_path: Path) -> None:
    """Converting the demo model to 513 MiB of float32 never holds the model, only about its largest tensor."""
    (path,) = demo_folder.glob("*.gguf")
    # Not getrusage: its maximum begins with that of the process that forked.
    program = (
        "import sys; from pathlib import Path; from ascendd.cli.app import main; code = main(sys.argv[1:]); "
        "print(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0]); sys.exit(code)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program, "convert", str(path), str(tmp_path / "out"), "--dtype", "float32"],
        check=True,
        capture_output=True,
        text=True,
        timeout=110,
    )

    peak_kib = int(done.stdout.splitlines()[-1])
    # Libraries take some 220 MiB; the rest is the largest tensor (108 MiB), the mapped source (94) and the vocabulary.
    assert 200 * 1024 < peak_kib < (220 + 400) * 1024


def test_weights_without_a_tokenizer_are_not_converted_unasked(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that could not be served is refused before the work, with what is missing and how to go on."""
    assert main(["convert", str(source), str(tmp_path / "out")]) == 66

    told = capsys.readouterr().err
    assert f"{source} holds no tokenizer.json" in told
    assert "--without-tokenizer" in told
    assert not (tmp_path / "out").exists()
