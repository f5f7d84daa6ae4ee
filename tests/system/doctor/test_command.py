"""`ascendd doctor` and `python3 -m checks` as an operator starts them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ascendd.preflight.check import NpuCheck, Tier
from ascendd.preflight.discover import find_checks

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[3]
CHECKS = [check for check in find_checks() if check.tier is Tier.BASIC]
CHECK_IDS = [check.id for check in CHECKS]
# What is asked of a host without an NPU and without a model.
NUM_HOST = sum(not issubclass(check, NpuCheck) for check in CHECKS) - 1
# A blocked site-packages: no venv, no user folder, only the bundle's own folders.
BOOTSTRAP = "import sys, runpy; sys.path.insert(0, {root!r}); sys.argv = ['checks', *{args!r}]; runpy.run_module('checks', run_name='__main__')"


def doctor(*args: str) -> subprocess.CompletedProcess[str]:
    """Run the verb."""
    return subprocess.run(
        [sys.executable, "-m", "ascendd", "doctor", *args],
        check=False,
        capture_output=True,
        text=True,
        cwd="/",
        timeout=100,
    )


def bootstrap(python: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run the checks with the standard library only."""
    code = BOOTSTRAP.format(root=str(ROOT), args=list(args))
    return subprocess.run(
        [python, "-I", "-S", "-c", code], check=False, capture_output=True, text=True, cwd="/", timeout=100
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A Qwen2 folder with one small weight file."""
    config = {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 2, "hidden_size": 64,
        "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
        "max_position_embeddings": 2048, "dtype": "bfloat16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_text("{}")
    header = json.dumps({"w": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    return tmp_path


def test_device_cpu_skips_the_npu_checks_and_exits_0(model: Path) -> None:
    """A CPU instance with a whole model passes; checks of NPUs are skipped and say why."""
    done = doctor("--device", "cpu", "--model", str(model), "--json")

    report = json.loads(done.stdout)
    assert done.returncode == report["exit_code"] == 0
    assert (report["schema"], report["device"]) == (1, "cpu")
    assert [check["id"] for check in report["checks"]] == CHECK_IDS
    verdicts = {check["id"]: check["verdict"] for check in report["checks"]}
    assert {verdicts.pop("model-artefact"), verdicts.pop("host-memory")} == {"pass"}
    assert set(verdicts.values()) == {"skipped"}
    assert {check["summary"] for check in report["checks"] if check["verdict"] == "skipped"} == {"--device cpu"}


def test_a_host_without_npus_says_so_and_fails_when_one_is_demanded() -> None:
    """`auto` turns to what a CPU needs; `--device npu` fails on presence with the remedy below the table."""
    if Path("/dev/davinci_manager").exists():
        pytest.skip("this host has NPUs")

    auto = doctor()
    demanded = doctor("--device", "npu", "--only", "npu-presence")

    assert (auto.returncode, auto.stdout.splitlines()[0]) == (0, "No NPU found: checking what a CPU instance needs")
    assert auto.stdout.splitlines()[-1] == f"Ready ({NUM_HOST} pass, {len(CHECKS) - NUM_HOST} skipped)"
    assert demanded.returncode == 2
    assert "no NPU found (PCI 0, /dev 0, npu-smi unknown, ACL unknown)" in demanded.stdout
    assert "runbook: docs/runbooks/ASD-D02.md" in demanded.stdout
    assert demanded.stdout.splitlines()[-1] == "Not ready (1 fail)"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--only", "npu-presense"], "no such check; known: npu-presence, npu-security"),
        (["--device", "gpu"], "--device gpu: write auto, npu or cpu"),
        (["--model", "/a", "--config", "/b"], "--config and --model exclude each other"),
        (["--instance", "../x"], "write the name only"),
        (["--deeep"], "No such option"),
    ],
)
def test_wrong_usage_exits_64_with_one_line(args: list[str], words: str) -> None:
    """Wrong usage is 64, never 2, which means failures; one line on standard error tells what to write."""
    done = doctor(*args)

    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (64, "", 1)
    assert words in done.stderr


def test_a_missing_instance_file_exits_78() -> None:
    """An instance that does not exist is a configuration error, not a finding about the host."""
    done = doctor("--instance", "no-such-instance")

    assert done.returncode == 78
    assert "no-such-instance.yaml does not exist" in done.stderr


def test_a_truncated_weight_file_fails_with_the_file_named(model: Path) -> None:
    """A download that was cut off is found from the header alone."""
    os.truncate(model / "model.safetensors", (model / "model.safetensors").stat().st_size - 3)

    done = doctor("--device", "cpu", "--model", str(model), "--only", "model-artefact")

    assert done.returncode == 2
    assert "model.safetensors" in done.stdout


def test_an_index_that_names_an_absent_file_fails(model: Path) -> None:
    """Every file of the index must be there."""
    index = {"weight_map": {"w": "model.safetensors", "v": "model-00002-of-00002.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))

    done = doctor("--device", "cpu", "--model", str(model), "--only", "model-artefact", "--json")

    assert done.returncode == 2
    assert "1 of 2 weight files are missing: model-00002-of-00002" in json.loads(done.stdout)["checks"][0]["summary"]


def test_the_bundle_runs_without_any_installed_package() -> None:
    """`python3 -m checks` needs the standard library only; what needs more is skipped with the name of it."""
    done = bootstrap(sys.executable, "--device", "cpu", "--model", "/tmp", "--json")

    report = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert [check["id"] for check in report["checks"]] == CHECK_IDS
    summaries = {check["id"]: check["summary"] for check in report["checks"]}
    assert summaries["model-artefact"] == "needs msgspec, which this Python lacks"


def test_the_bundle_prints_a_plain_table_without_rich() -> None:
    """Without rich the table is plain text with the same words."""
    done = bootstrap(sys.executable, "--device", "cpu")

    assert done.returncode == 0
    assert done.stdout.splitlines()[1].split() == ["Check", "Verdict", "Finding"]
    assert done.stdout.splitlines()[-1] == f"Ready ({NUM_HOST} pass, {len(CHECKS) - NUM_HOST} skipped)"


@pytest.mark.skipif(
    not shutil.which("python3.9") and not list(Path.home().glob(".pyenv/versions/3.9.*")), reason="no Python 3.9"
)
def test_the_bundle_runs_on_python_3_9() -> None:
    """The oldest Python of a supported host runs the checks."""
    python = next((str(path / "bin/python") for path in Path.home().glob(".pyenv/versions/3.9.*")), "python3.9")
    if subprocess.run([python, "--version"], check=False, capture_output=True).returncode != 0:
        pytest.skip("python3.9 does not start")

    done = bootstrap(python, "--device", "npu", "--only", "cann-version", "--json")

    assert done.stderr == ""
    assert json.loads(done.stdout)["checks"][0]["id"] == "cann-version"


def test_the_bundle_refuses_wrong_usage_with_64() -> None:
    """The bundle keeps the exit code of wrong usage."""
    done = bootstrap(sys.executable, "--only", "nothing")

    assert (done.returncode, done.stdout) == (64, "")
    assert "known: npu-presence" in done.stderr
