"""Every flag of `ascendd serve`, and every flag of other start scripts that it answers."""

from __future__ import annotations

import pytest

from ascendd.cli import app as cli
from ascendd.cli.serve import build_config, help_text
from ascendd.cli.serve_flags import FLAGS, NOTED, REFUSED, Kind
from ascendd.config.schema import AdapterEntry, TlsSection
from ascendd.errors import UsageError

# flag and what follows it -> key of the configuration and its value
SETS = [
    (["--host", "0.0.0.0"], "listen.host", "0.0.0.0"),
    (["--port", "9000"], "listen.port", 9000),
    (["--port=9000"], "listen.port", 9000),
    (["--api-key-file", "/k"], "listen.api_key_file", "/k"),
    (["--served-model-name", "qwen2"], "model.name", "qwen2"),
    (["--served_model_name", "qwen2"], "model.name", "qwen2"),
    (["--dtype", "float16"], "model.dtype", "float16"),
    (["--dtype", "half"], "model.dtype", "float16"),
    (["--dtype", "float"], "model.dtype", "float32"),
    (["--max-model-len", "4096"], "model.max_model_len", 4096),
    (["--device", "npu"], "engine.device", "npu"),
    (["--max-num-seqs", "32"], "engine.max_num_seqs", 32),
    (["--max-num-batched-tokens", "4096"], "engine.max_num_batched_tokens", 4096),
    (["--block-size", "32"], "engine.block_size", 32),
    (["--max-num-blocks", "9253"], "engine.max_num_blocks", 9253),
    (["--num-gpu-blocks", "9253"], "engine.max_num_blocks", 9253),
    (["--num-gpu-blocks-override", "9253"], "engine.max_num_blocks", 9253),
    (["--kv-cache-memory", "4GiB"], "engine.kv_cache_memory", "4GiB"),
    (["--kv-cache-memory-bytes", "1073741824"], "engine.kv_cache_memory", 1 << 30),
    (["--gpu-memory-utilization", "0.85"], "engine.gpu_memory_utilization", 0.85),
    (["--kv-cache-dtype", "float16"], "engine.kv_cache_dtype", "float16"),
    (["--weight-dtype", "fp16"], "engine.weight_dtype", "float16"),
    (["--enable-prefix-caching"], "engine.enable_prefix_caching", True),
    (["--enable-prefix-caching", "false"], "engine.enable_prefix_caching", False),
    (["--no-enable-prefix-caching"], "engine.enable_prefix_caching", False),
    (["--enforce-eager"], "engine.enforce_eager", True),
    (["--enforce-eager", "true"], "engine.enforce_eager", True),
    (["--enforce-eager", "false"], "engine.enforce_eager", False),
    (["--enforce-eager=false"], "engine.enforce_eager", False),
    (["--seed", "0"], "engine.seed", 0),
    (["--num-threads", "4"], "engine.num_threads", 4),
    (["--tensor-parallel-size", "4"], "parallel.tensor_parallel_size", 4),
    (["-tp", "2"], "parallel.tensor_parallel_size", 2),
    (["--pipeline-parallel-size", "2"], "parallel.pipeline_parallel_size", 2),
    (["-pp", "2"], "parallel.pipeline_parallel_size", 2),
    (["--devices", "3"], "parallel.devices", [3]),
    (["--max-queue", "0"], "admission.max_queue", 0),
    (["--request-timeout", "30"], "admission.request_timeout_s", 30.0),
    (["--drain-timeout", "5"], "recovery.drain_timeout_s", 5.0),
    (["--metrics-port", "9999"], "metrics.port", 9999),
    (["--log-level", "debug"], "log.level", "debug"),
    (["--uvicorn-log-level", "warning"], "log.level", "warning"),
    (["--log-file", "/l"], "log.file", "/l"),
    (["--log-rotation-size", "100MB"], "log.max_bytes", "100MB"),
    (["--log-rotation-count", "5"], "log.backups", 5),
    (["--enable-lora"], "engine.enable_lora", True),
    (
        ["--lora-modules", "a=/a", "b=/b=c", "--seed", "1"],
        "model.adapters",
        [AdapterEntry(name="a", path="/a"), AdapterEntry(name="b", path="/b=c")],
    ),
    (["--lora-modules=a=/a"], "model.adapters", [AdapterEntry(name="a", path="/a")]),
    (
        ["--lora_modules", '{"name": "a", "path": "/a", "base_model_name": "m"}'],
        "model.adapters",
        [AdapterEntry(name="a", path="/a")],
    ),
    (
        ["--lora-modules", '[{"name": "a", "path": "/a"}]', "b=/b"],
        "model.adapters",
        [AdapterEntry(name="a", path="/a"), AdapterEntry(name="b", path="/b")],
    ),
    (["--adapter-root", "/adapters"], "model.adapter_root", "/adapters"),
    (["--ssl-certfile", "/c", "--ssl-keyfile", "/k"], "listen.tls", TlsSection(cert_file="/c", key_file="/k")),
    (["--ssl-keyfile=/k", "--ssl_certfile=/c"], "listen.tls", TlsSection(cert_file="/c", key_file="/k")),
    (["--max-loras", "4"], "engine.max_loras", 4),
    (["--max-lora-rank", "32"], "engine.max_lora_rank", 32),
    (["--max-cpu-loras", "128"], "engine.max_cpu_loras", 128),
    (["--disable-log-stats"], "log.stats_interval_s", 0.0),
]

# flag and what follows it -> words of the one line that refuses it
REFUSES = [
    (["--api-key", "sk-hidden"], "--api-key-file"),
    (["--api-key=sk-hidden"], "--api-key-file"),
    (["--api_key", "sk-hidden"], "--api-key-file"),
    (["--trust-remote-code"], "own model code only"),
    (["--lora-dtype", "auto"], "dtype of the model"),
    (["--fully-sharded-loras"], "cut like the layers"),
    (["--max-lora-rank", "65"], "--max-lora-rank = 65"),
    (["--max-cpu-loras", "129"], "--max-cpu-loras = 129"),
    (["--max-loras", "4", "--max-cpu-loras", "2"], "is less than max_loras"),
    (["--lora-modules"], "--lora-modules needs a value"),
    (["--lora-modules", "a"], "needs NAME=PATH"),
    (["--lora-modules", "=a"], "needs NAME=PATH"),
    (["--lora-modules", "{"], "JSON that cannot be read"),
    (["--lora-modules", '{"name": "a"}'], "JSON objects with name and path"),
    (["--lora-modules", '{"name": "a", "path": 1}'], "name and path are text"),
    (["--lora-modules", "a=/a", "a=/b"], "is the name of an earlier adapter"),
    (["--lora-modules", "a=/a", "--served-model-name", "a"], "is also model.name"),
    (["--lora-modules", "a=/a", "--enable-lora", "false"], "contradicts the adapters"),
    (["--adapter-root", "adapters"], "is not an absolute path"),
    (["--swap-space", "16"], "computed again"),
    (["--cpu-offload-gb", "4"], "weights stay"),
    (["--quantization", "awq"], "quantized weights"),
    (["-q", "awq"], "quantized weights"),
    (["--load-format", "dummy"], "ascendd convert"),
    (["--worker-use-ray"], "processes of this daemon"),
    (["--distributed-executor-backend", "ray"], "processes of this daemon"),
    (["--ray-workers-use-nsight"], "processes of this daemon"),
    (["--speculative-model", "/d"], "speculative"),
    (["--speculative-config", "{}"], "speculative"),
    (["--num-speculative-tokens", "5"], "speculative"),
    (["--data-parallel-size", "2"], "one instance per replica"),
    (["--enable-expert-parallel"], "expert"),
    (["--ssl-ca-certs", "/c"], "--ssl-keyfile"),
    (["--ssl-certfile", "/c"], "--ssl-keyfile: is required"),
    (["--ssl-ciphers", "x"], "OpenSSL"),
    (["--allowed-origins", "[]"], "reverse proxy"),
    (["--root-path", "/x"], "/v1"),
    (["--tokenizer", "/t"], "model folder"),
    (["--tokenizer-mode", "slow"], "model folder"),
    (["--revision", "main"], "nothing is downloaded"),
    (["--download-dir", "/d"], "nothing is downloaded"),
    (["--hf-overrides", "{}"], "nothing is downloaded"),
    (["--chat-template", "/t"], "model folder"),
    (["--rope-scaling", "{}"], "model folder"),
    (["--generation-config", "auto"], "model folder"),
    (["--enable-auto-tool-choice"], "tool calls"),
    (["--tool-call-parser", "hermes"], "tool calls"),
    (["--reasoning-parser", "qwen3"], "reasoning"),
    (["--limit-mm-per-prompt", "{}"], "text models"),
    (["--task", "embed"], "text generation"),
    (["--guided-decoding-backend", "x"], "guided"),
    (["--compilation-config", "{}"], "--enforce-eager"),
    (["-O3"], "is not a flag"),
    (["--max-seq-len-to-capture", "8192"], "graph sizes"),
    (["--scheduling-policy", "priority"], "one scheduler"),
    (["--num-scheduler-steps", "8"], "one scheduler"),
    (["--no-enable-chunked-prefill"], "always computed in chunks"),
    (["--additional-config", "{}"], "names of their own"),
    (["--otlp-traces-endpoint", "x"], "tracing.endpoint of an instance file"),
    (["--enable-log-requests"], "never logged"),
    (["--log-rotation-interval", "1d"], "--log-rotation-size"),
    (["--log-rotation-when", "midnight"], "--log-rotation-size"),
    (["--config", "/f"], "ascendd run --config"),
    (["--prot", "80"], "did you mean --port?"),
    (["--max-num-seq", "80"], "did you mean --max-num-seqs?"),
    (["--xyzzy-hidden=sk-hidden"], "--xyzzy-hidden is not a flag of serve"),
    (["--port"], "--port needs a value"),
    (["--port", "--seed", "1"], "--port needs a value"),
    (["--port", "http"], "--port needs a whole number"),
    (["--port", "70000"], "--port = 70000"),
    (["--gpu-memory-utilization", "much"], "needs a number"),
    (["--devices", "a"], "whole numbers with commas"),
    (["--block-size", "17"], "--block-size = 17"),
    (["--kv-cache-dtype", "fp8"], "--kv-cache-dtype = 'fp8'"),
    (["--weight-dtype", "int4"], "--weight-dtype = 'int4'"),
    (["--enforce-eager", "maybe"], "--enforce-eager is true or false"),
    (["--enforce-eager=maybe"], "--enforce-eager is true or false"),
    (["--disable-log-stats=1"], "takes no value"),
    (["--max-num-blocks", "5", "--kv-cache-memory", "1GiB"], "at most one of these"),
    (["--metrics-port", "8000"], "is also listen.port"),
    (["/second"], "one MODEL"),
]


@pytest.mark.parametrize(("args", "key", "value"), SETS, ids=str)
def test_a_flag_sets_its_key(args, key, value):
    """Each familiar flag changes the one key that it stands for."""
    section, name = key.split(".")

    config, notes = build_config(["/m", *args])

    assert getattr(getattr(config, section), name) == value
    assert notes == []


@pytest.mark.parametrize(("args", "words"), REFUSES, ids=str)
def test_what_is_not_taken_is_answered_in_one_line(args, words, capsys):
    """A flag that is refused, unknown or misused exits 64 with one line of reason, and no key is ever repeated."""
    assert cli.main(["serve", "/m", *args]) == 64

    captured = capsys.readouterr()
    (line,) = [line for line in captured.err.splitlines() if line.startswith("error ")]
    assert words in line
    assert "sk-hidden" not in captured.err + captured.out


def test_the_tables_are_tested_whole():
    """Every name of the flag table and every refusal occurs in the tables of this file."""
    set_names = {args[0].partition("=")[0].replace("_", "-") for args, *_ in SETS}
    refused_names = {args[0].partition("=")[0].replace("_", "-") for args, _ in REFUSES}

    assert {name for flag in FLAGS for name in flag.names} - set_names == set()
    untested = [
        refused.names
        for refused in REFUSED
        if not any(
            tried == name or (name.endswith("*") and tried.startswith(name[:-1]))
            for name in refused.names
            for tried in refused_names
        )
    ]
    assert untested == [
        ("--enable-prompt-adapter", "--max-prompt-adapter*"),
        ("--calculate-kv-scales", "--kv-transfer-*", "--kv-events-*"),
    ]


@pytest.mark.parametrize("name", [name for noted in NOTED for name in noted.names])
def test_flags_without_effect_are_noted(name):
    """A flag of an old script that has nothing to do here is accepted with one note."""
    config, notes = build_config(["/m", name])

    assert config.model.path == "/m"
    assert len(notes) == 1
    assert notes[0].startswith(f"{name} changes nothing: ")


def test_the_model_may_stand_anywhere():
    """MODEL is found before, between and after flags, and by --model."""
    for args in (
        ["/m", "--seed", "1"],
        ["--seed", "1", "/m"],
        ["--enforce-eager", "/m"],
        ["--model", "/m"],
        ["--model=/m"],
    ):
        assert build_config(args)[0].model.path == "/m"


def test_without_a_model_there_is_nothing_to_serve():
    """The error shows the form of the command."""
    with pytest.raises(UsageError, match="ascendd serve MODEL"):
        build_config(["--port", "1"])


def test_the_last_of_equal_flags_wins():
    """Scripts append overrides."""
    assert build_config(["/m", "--port", "1", "--port", "2"])[0].listen.port == 2


def test_help_shows_every_flag_with_its_key():
    """The help is made from the same table as the parser."""
    text = help_text()

    for flag in FLAGS:
        assert f"({flag.section}.{flag.key})" in text
        assert all(name in text for name in flag.names)
    assert Kind.BYTES.value in text
