"""How vLLM is started for an instance file, and what of one it cannot do."""

from __future__ import annotations

import json

import pytest

from ascendd.artefact.manifest import MANIFEST_NAME
from ascendd.config.load import load_text
from ascendd.config.vllm_rules import OWNED
from ascendd.errors import ConfigInvalid, ModelNotFound, ModelUnsupported
from ascendd.supervisor import vllm_backend
from ascendd.vllm.address import Address, new_address
from ascendd.vllm.command import build

BASE = "model: {{path: /m, name: q{model}}}\nengine: {{backend: vllm, vllm: {{venv: /opt/vllm{vllm}}}{engine}}}\n{rest}"


def config(model="", vllm="", engine="", rest=""):
    return load_text(BASE.format(model=model, vllm=vllm, engine=engine, rest=rest))


def argv(*args, **kwargs):
    return build(config(*args, **kwargs), Address(path="/run/s"), {"PATH": "/bin"}).argv


def pairs(command):
    return {name: command[at + 1] for at, name in enumerate(command[:-1]) if name.startswith("--")}


def test_each_setting_has_its_option():
    """Sizes, lengths, the cache and the parallel sizes are told under vLLM's names."""
    told = pairs(argv(
        model=", dtype: fp16, max_model_len: 4096",
        engine=", max_num_seqs: 8, max_num_batched_tokens: 512, block_size: 64, kv_cache_memory: 1GiB, seed: 3",
        rest="parallel: {tensor_parallel_size: 4, pipeline_parallel_size: 2}",
    ))  # fmt: skip

    assert told["--dtype"] == "float16"
    assert (told["--max-model-len"], told["--block-size"], told["--seed"]) == ("4096", "64", "3")
    assert told["--kv-cache-memory-bytes"] == str(1 << 30)
    assert (told["--tensor-parallel-size"], told["--pipeline-parallel-size"]) == ("4", "2")
    assert told["--uds"] == "/run/s"


def test_adapters_are_given_as_json_with_the_next_rank_that_vllm_knows():
    """A rank between two of vLLM's becomes the higher one; a name or path may hold any character."""
    command = argv(model=", adapters: [{name: 'a=b', path: /a}]", engine=", max_lora_rank: 20")

    assert json.loads(command[-1]) == {"name": "a=b", "path": "/a"}
    assert pairs(command)["--max-lora-rank"] == "32"


def test_further_options_are_passed_on():
    """True is an option alone, false its opposite, anything else its value; underscores are dashes."""
    command = argv(vllm=", args: {trust_remote_code: true, enable-chunked-prefill: false, max-log-len: 5}")

    assert command[-4:] == ("--trust-remote-code", "--no-enable-chunked-prefill", "--max-log-len", "5")


@pytest.mark.parametrize("name", sorted(OWNED))
def test_an_option_of_ours_is_refused_by_name(name):
    """What a key of the instance file sets, or ascendd decides, cannot be set twice; the hint names the key."""
    with pytest.raises(ConfigInvalid) as caught:
        config(vllm=f", args: {{{name}: x}}")

    assert f"engine.vllm.args.{name}: is set by ascendd; write {OWNED[name]}" in caught.value.message


@pytest.mark.parametrize(
    ("kwargs", "key"),
    [
        ({"engine": ", kv_cache_dtype: fp32"}, "engine.kv_cache_dtype"),
        ({"model": ", adapter_root: /a"}, "model.adapter_root"),
        ({"rest": "tuning: {enabled: true}"}, "tuning.enabled"),
        ({"rest": "listen: {strict: true}"}, "listen.strict"),
        ({"rest": "preprocess: {truncate: last}"}, "preprocess.keep_last_tokens"),
    ],
)
def test_what_vllm_cannot_do_is_refused_by_name(kwargs, key):
    """A setting that would be without effect is an error with its key and what to write."""
    with pytest.raises(ConfigInvalid) as caught:
        config(**kwargs)

    assert f"$.{key}" in caught.value.message


@pytest.mark.parametrize("engine", ["engine: {backend: vllm}", "engine: {vllm: {venv: /v}}"])
def test_section_and_backend_belong_together(engine):
    """Neither the section without the backend nor the backend without it is taken."""
    with pytest.raises(ConfigInvalid, match=r"engine\.vllm"):
        load_text(f"model: {{path: /m}}\n{engine}")


def test_a_key_is_in_the_environment_only():
    """The key of a loopback port is in no argument, and no repr shows it."""
    address = new_address("loopback", "q", {})
    command = build(config(), address, {"PATH": "/bin", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})

    assert command.env["VLLM_API_KEY"] == address.key
    assert address.key not in " ".join(command.argv) + repr(address)
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD" not in command.env


def test_an_address_is_new_each_time_and_clears_what_was_left(tmp_path):
    """The folder of a killed keeper of this instance goes, another instance's stays."""
    environ = {"RUNTIME_DIRECTORY": str(tmp_path)}
    old, other = new_address("unix", "a", environ), new_address("unix", "a-b", environ)
    new = new_address("unix", "a", environ)

    folders = {path.name for path in tmp_path.iterdir()}
    assert len(folders) == 2
    assert new.path not in (old.path, other.path)
    assert next(tmp_path.iterdir()).stat().st_mode & 0o077 == 0


def test_the_backend_looks_before_anything_starts(tmp_path):
    """A missing bin/vllm, a missing model and a folder that `ascendd convert` wrote are three errors with remedies."""
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "model").mkdir()
    text = f"model: {{path: {tmp_path}/model}}\nengine: {{backend: vllm, vllm: {{venv: {tmp_path}/venv}}}}"
    backend, wanted = vllm_backend.BACKEND, load_text(text)

    with pytest.raises(ConfigInvalid, match="bin/vllm is not there"):
        backend.check(wanted)
    (tmp_path / "venv" / "bin" / "vllm").touch(mode=0o755)
    with pytest.raises(ModelNotFound, match=r"no config\.json"):
        backend.check(wanted)
    (tmp_path / "model" / "config.json").write_text('{"num_attention_heads": 12}')
    backend.check(wanted)
    assert [size for size in (1, 2, 3, 4, 8) if backend.fits(wanted, size)] == [1, 2, 3, 4]
    (tmp_path / "model" / MANIFEST_NAME).touch()
    with pytest.raises(ModelUnsupported, match="packed for the native engine"):
        backend.check(wanted)
    assert vllm_backend.MANIFEST_NAME == MANIFEST_NAME


def test_a_cache_of_eight_bits_is_an_option_of_its_own():
    """Our own word for a dtype knows no fp8; any other dtype of the cache is the key's."""
    text = "model: {path: /m}\nengine: {backend: vllm, vllm: {venv: /v, args: {kv-cache-dtype: %s}}}\n"
    argv = build(load_text(text % "fp8_e5m2", "x"), Address(path="/s"), {}).argv

    assert argv[argv.index("--kv-cache-dtype") + 1] == "fp8_e5m2"
    with pytest.raises(ConfigInvalid) as caught:
        load_text(text % "bfloat16", "x")
    assert any("write engine.kv_cache_dtype" in problem for problem in caught.value.facts["problems"])
