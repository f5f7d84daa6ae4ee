"""What starts a vLLM today becomes an instance's file, and nothing is lost without a word."""

from __future__ import annotations

import json

import pytest
import yaml

from ascendd.cli.app import main
from ascendd.cli.migrate_source import read_source
from ascendd.config.load import load_text
from ascendd.errors import UsageError

SCRIPT = r"""#!/bin/bash
source /usr/local/Ascend/ascend-toolkit/set_env.sh
source /opt/vllm/bin/activate
export ASCEND_RT_VISIBLE_DEVICES=0,1,2,3
export HCCL_CONNECT_TIMEOUT=1800
export VLLM_API_KEY="first-secret"
MODEL_DIR=${MODEL_DIR:-/data/models/Qwen2-7B-Instruct}
PORT=8000   # of the API
curl -H "Authorization: Bearer second-secret" http://127.0.0.1/
nohup vllm serve $MODEL_DIR \
    --served-model-name qwen2-7b --host 0.0.0.0 --port ${PORT} \
    --tensor-parallel-size 4 --dtype float16 --block-size 32 --max-num-seqs 64 --max-model-len 8192 \
    --gpu-memory-utilization=0.9 --enable-prefix-caching --trust-remote-code --swap-space 16 --api-key third-secret \
    --disable-log-requests > /var/log/vllm.log 2>&1 &
"""

UNIT = """[Unit]
Description=vLLM
[Service]
User=llm
Environment="ASCEND_RT_VISIBLE_DEVICES=2,3" VLLM_USE_V1=1
ExecStart=/opt/vllm/bin/vllm serve /data/m -tp 2 \\
  --quantization ascend --max-num-seqs 16
Restart=always
LimitNOFILE=65535
"""


def migrated(tmp_path, capsys, text, *flags):
    """Return exit status, the file made, and the lines beside it."""
    path = tmp_path / "source"
    path.write_text(text)
    status = main(["migrate", *flags, str(path)])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_a_start_script_becomes_an_instance_of_either_backend(tmp_path, capsys):
    """Both files are taken by the daemon, with the script's model, port, devices and batch."""
    for backend in ("native", "vllm"):
        status, text, _ = migrated(tmp_path, capsys, SCRIPT, "--to", backend)
        config = load_text(text, backend)

        assert status == 0
        assert (config.model.path, config.model.name) == ("/data/models/Qwen2-7B-Instruct", "qwen2-7b")
        assert (config.listen.host, config.listen.port) == ("0.0.0.0", 8000)
        assert (config.parallel.tensor_parallel_size, config.parallel.devices) == (4, [0, 1, 2, 3])
        assert (config.engine.backend, config.engine.device, config.engine.block_size) == (backend, "npu", 32)


def test_vllm_keeps_its_own_options_and_native_says_why_not(tmp_path, capsys):
    """What only vLLM has is below engine.vllm.args there, and named with a reason for the native engine."""
    _, text, _ = migrated(tmp_path, capsys, SCRIPT, "--to", "vllm")
    _, native, beside = migrated(tmp_path, capsys, SCRIPT, "--to", "native")

    assert yaml.safe_load(text)["engine"]["vllm"] == {
        "venv": "/opt/vllm",
        "args": {"trust-remote-code": True, "swap-space": 16},
    }
    assert "swap" not in native
    assert "not taken over: --swap-space 16: preempted sequences are computed again" in beside
    assert "not taken over: HCCL_CONNECT_TIMEOUT=1800: " in beside


@pytest.mark.parametrize("flags", [[], ["--json"], ["--to", "native"]])
def test_no_secret_is_repeated(tmp_path, capsys, flags):
    """Keys of the script are in neither output, and the operator is told where they go."""
    _, text, beside = migrated(tmp_path, capsys, SCRIPT, *flags)

    assert "secret" not in (text + beside).replace("secrets are in files", "")
    assert "listen.api_key_file" in text + beside


def test_a_unit_file_tells_its_environment_and_its_directives(tmp_path, capsys):
    """Each directive with a meaning for the service is answered; the environment is that of its executable."""
    _, text, beside = migrated(tmp_path, capsys, UNIT)
    config = load_text(text, "unit")

    assert config.engine.vllm.venv == "/opt/vllm"
    assert config.engine.vllm.args == {"quantization": "ascend"}
    assert (config.parallel.devices, config.parallel.tensor_parallel_size) == ([2, 3], 2)
    for told in ("User=llm", "Restart=always", "LimitNOFILE=65535", "VLLM_USE_V1=1"):
        assert f"not taken over: {told}: " in beside


def test_a_command_line_is_taken_after_the_options(capsys):
    """`ascendd migrate vllm serve ...` needs no file; defaults of vLLM that clients see are kept or named."""
    status = main(["migrate", "--json", "--venv", "/opt/v", "vllm", "serve", "--enable-prefix-caching", "Qwen/Q"])
    told = json.loads(capsys.readouterr().out)

    assert status == 0
    assert told["config"]["model"] == {"path": "Qwen/Q", "name": "Qwen/Q"}
    assert told["config"]["listen"]["host"] == "0.0.0.0"
    assert [text.partition(":")[0] for text in told["todo"]] == ["listen.host", "model.path", "engine.max_num_seqs"]


def test_what_the_daemon_would_refuse_is_told(tmp_path, capsys):
    """The file is shown with what is wrong in it, and the status is that of a wrong configuration."""
    status, text, beside = migrated(tmp_path, capsys, "vllm serve /data/m --block-size 8\n", "--venv", "/opt/v")

    assert status == 78
    assert "block_size: 8" in text
    assert "refused as it is: $.engine.block_size" in beside


def test_a_unit_that_runs_a_script_names_it(tmp_path, capsys):
    """The script has to be given itself; wrong usage is 64."""
    unit = "[Service]\nExecStart=/opt/start.sh\n"

    assert migrated(tmp_path, capsys, unit)[0] == 64
    with pytest.raises(UsageError, match=r"ExecStart=/opt/start\.sh: migrate that script"):
        read_source(unit)


def test_old_entry_points_and_redirections_are_understood():
    """The module's form, an environment before the command, and what follows it are told from arguments."""
    found = read_source(
        "OMP_NUM_THREADS=4 exec /v/bin/python3 -m vllm.entrypoints.openai.api_server --model /m 2>> x &\n"
    )

    assert (found.argv, found.venv, found.environment) == (["--model", "/m"], "/v", {"OMP_NUM_THREADS": "4"})


def test_tls_keeps_both_of_its_files(tmp_path, capsys):
    """Each of the two options sets one key of listen.tls, and the file is taken by the daemon."""
    _, text, _ = migrated(
        tmp_path, capsys, "vllm serve /m --ssl-keyfile /k.pem --ssl-certfile /c.pem\n", "--venv", "/v"
    )
    tls = load_text(text, "tls").listen.tls

    assert (tls.key_file, tls.cert_file) == ("/k.pem", "/c.pem")


DOCKER = (
    "docker run --runtime nvidia --gpus '\"device=1,2\"' -v /data/models:/models --env HF_TOKEN=hf-secret "
    "-p 127.0.0.1:8080:8000 --ipc=host --rm -it vllm/vllm-openai:v0.11.0 --model /models/qwen --tensor-parallel-size 2"
)
ASCEND_DOCKER = (
    "docker run -d --name v --device /dev/davinci4 --device=/dev/davinci5 --device /dev/davinci_manager --shm-size=1g "
    "-v /data:/data -e PYTORCH_NPU_ALLOC_CONF=x quay.io/ascend/vllm-ascend:v0.9.1 vllm serve /data/q -tp 2"
)
YARN = '{"rope_type":"yarn","factor":4.0}'
# What people run, as it is found in guides and issues: the command, keys of the file, and what is said to be left out.
COMMANDS = {
    "a container": (
        DOCKER,
        {"model.path": "/data/models/qwen", "listen.host": "127.0.0.1", "listen.port": 8080, "engine.device": "cuda",
         "parallel.devices": [1, 2], "parallel.tensor_parallel_size": 2},
        ["image vllm/vllm-openai:v0.11.0: install that vLLM", "-v /data/models:/models: paths are those of the host",
         "HF_TOKEN=...: nothing is downloaded", "--ipc host: an instance runs on the host"]),
    "a container on NPUs": (
        ASCEND_DOCKER, {"model.path": "/data/q", "parallel.devices": [4, 5], "engine.device": "npu"},
        ["--name v: the instance's name", "--device /dev/davinci_manager: `ascendd instance create`", "--shm-size 1g:"]),
    "devices before the command": (
        "CUDA_VISIBLE_DEVICES=0,1 vllm serve Qwen/Qwen2.5-7B-Instruct -tp 2 --enable-auto-tool-choice --tool-call-parser hermes",
        {"parallel.devices": [0, 1], "model.name": "Qwen/Qwen2.5-7B-Instruct",
         "engine.vllm.args": {"enable-auto-tool-choice": True, "tool-call-parser": "hermes"}}, []),
    "the module": (
        "python3 -m vllm.entrypoints.openai.api_server --model /m/ds --trust-remote-code --port 8001 --enable-chunked-prefill",
        {"model.path": "/m/ds", "listen.port": 8001, "engine.vllm.args": {"trust-remote-code": True}},
        ["--enable-chunked-prefill: prompts are always"]),
    "options with JSON": (
        "vllm serve /m/r1 -tp 8 --enable-expert-parallel --reasoning-parser deepseek_r1 "
        "--speculative-config '{\"method\": \"mtp\", \"num_speculative_tokens\": 1}'",
        {"engine.vllm.args": {"enable-expert-parallel": True, "reasoning-parser": "deepseek_r1",
                              "speculative-config": '{"method": "mtp", "num_speculative_tokens": 1}'}}, []),
    "uv": ("uv run --with vllm vllm serve /m/l --host 127.0.0.1 --api-key secret-1", {"listen.host": "127.0.0.1"},
           ["uv run --with vllm: install vLLM into a folder of its own", "--api-key ...: secrets are in files"]),
    "a shell in a shell": (
        'bash -c "source /opt/vllm/bin/activate && vllm serve /m/q --port 9000 > log 2>&1 &"',
        {"listen.port": 9000, "engine.vllm.venv": "/opt/vllm"}, []),
    "a cache of eight bits": (
        f"vllm serve /m/q --kv-cache-dtype fp8 --quantization awq --rope-scaling '{YARN}'",
        {"engine.vllm.args": {"kv-cache-dtype": "fp8", "quantization": "awq", "rope-scaling": YARN}}, []),
    "numactl and adapters": (
        "numactl --cpunodebind=0 --membind=0 /opt/v/bin/vllm serve /m/q --block-size 128 --enable-lora --max-lora-rank 64",
        {"engine.vllm.venv": "/opt/v", "engine.block_size": 128, "engine.max_lora_rank": 64},
        ["numactl --cpunodebind=0 --membind=0: `ascendd instance create` binds"]),
    "several hosts": (
        "vllm serve /m/q -tp 8 -pp 2 --distributed-executor-backend ray",
        {"parallel.tensor_parallel_size": 8, "parallel.pipeline_parallel_size": 2},
        ["--distributed-executor-backend ray: write cluster"]),
    "underscores and a log": (
        "nohup python -m vllm.entrypoints.openai.api_server --model=/m/q --tensor_parallel_size=4 --disable-log-requests &> /v.log &",
        {"model.path": "/m/q", "parallel.tensor_parallel_size": 4}, ["--disable-log-requests: prompts"]),
    "the old demo server": (
        "ASCEND_RT_VISIBLE_DEVICES=0,1 python -m vllm.entrypoints.api_server --model /m/q -tp 2",
        {"parallel.devices": [0, 1]}, ["vllm.entrypoints.api_server: its route /generate is gone"]),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_that_people_use(tmp_path, capsys, name):
    """Each becomes a file that the daemon takes, with what it set; what is left out is named with its reason."""
    command, keys, said = COMMANDS[name]

    status, text, beside = migrated(tmp_path, capsys, command + "\n", "--to", "vllm")

    assert status == 0, beside
    load_text(text, name)
    raw = yaml.safe_load(text)
    for path, value in keys.items():
        found = raw
        for key in path.split("."):
            found = found[key]
        assert found == value, (path, found)
    for line in said:
        assert f"not taken over: {line}" in beside, beside
    assert "secret" not in (text + beside).replace("secrets are in files", "")


def test_options_in_a_file_have_to_be_written_out(tmp_path, capsys):
    """The file behind --config is not read, and that is said."""
    status, _, beside = migrated(tmp_path, capsys, "vllm serve --config /etc/vllm.yaml\n")

    assert status == 64
    assert "its options are in the file behind --config" in beside


def test_a_unit_that_runs_a_shell_is_read_with_its_variables(tmp_path, capsys):
    """`ExecStart=/bin/bash -c` and ${NAME} of Environment= are what units of guides have."""
    unit = (
        "[Service]\nEnvironment=MODEL=/data/m PORT=8100\n"
        "ExecStart=/bin/bash -lc 'source /opt/v/bin/activate && exec vllm serve ${MODEL} --port ${PORT} -tp 2'\n"
    )
    status, text, _ = migrated(tmp_path, capsys, unit)
    config = load_text(text, "unit")

    assert status == 0
    assert (config.model.path, config.listen.port, config.engine.vllm.venv) == ("/data/m", 8100, "/opt/v")
