"""A host's node of Ray: how it is started, what vLLM is told, and who is missing."""

from __future__ import annotations

import asyncio
import json

import pytest

from ascendd.cli.cluster import require_token
from ascendd.config.load import load_text
from ascendd.config.schema import InstanceConfig
from ascendd.errors import ConfigInvalid, EngineFault, WorkerLost
from ascendd.host.ray_nodes import Nodes, labels_of, read_line
from ascendd.vllm.address import Address
from ascendd.vllm.command import build
from ascendd.vllm.host_wait import HostWait
from ascendd.vllm.host_watch import HostWatch
from ascendd.vllm.ray_node import missing_text, read_nodes, start_command, with_token


def config(cluster: str = "", engine: str = "", parallel: str = "") -> InstanceConfig:
    """Return an instance of two hosts; each argument adds or replaces keys of its section."""
    section = {"head": "10.0.0.1", "address": "10.0.0.1", "interface": "eth1", "nodes": "2", "token_file": "/t"}
    section |= dict(pair.split(": ") for pair in cluster.split(", ") if pair)
    text = ", ".join(f"{key}: {value}" for key, value in section.items())
    head = "model: {path: /m}\nengine: {backend: vllm, vllm: {venv: /v}" + (f", {engine}" if engine else "") + "}\n"
    return load_text(f"{head}parallel: {{{parallel}}}\ncluster: {{{text}}}\n", "test")


def test_the_head_makes_the_cluster_and_a_worker_joins_it():
    """The head owns the port, a worker names it; both stay in the foreground, on their own address."""
    head, env = start_command(config(), "cpu", {"STATE_DIRECTORY": "/s"})
    worker, _ = start_command(config("address: 10.0.0.2"), "cpu", {})

    assert head[:3] == ["/v/bin/ray", "start", "--block"]
    assert head[head.index("--node-ip-address") + 1] == "10.0.0.1"
    assert head[head.index("--port") + 1] == "6379"
    assert env["RAY_TMPDIR"] == "/s"
    assert "--head" not in worker
    assert worker[worker.index("--address") + 1] == "10.0.0.1:6379"
    assert worker[worker.index("--node-ip-address") + 1] == "10.0.0.2"


def test_npus_are_told_to_ray_and_no_others_are_seen():
    """Ray learns how many NPUs this host gives, and its processes see those alone."""
    argv, env = start_command(config(parallel="tensor_parallel_size: 2, devices: [4, 5]"), "npu", {})

    assert json.loads(argv[argv.index("--resources") + 1]) == {"NPU": 2}
    assert env["ASCEND_RT_VISIBLE_DEVICES"] == "4,5"


def test_the_token_is_a_file_and_ray_asks_for_it():
    """Only the path is in the environment, nothing of it in the arguments, and authentication is on."""
    argv, env = start_command(config(), "cpu", {})

    assert (env["RAY_AUTH_MODE"], env["RAY_AUTH_TOKEN_PATH"]) == ("token", "/t")
    assert "RAY_AUTH_TOKEN" not in env
    assert "/t" not in argv
    assert "RAY_ADDRESS" not in env


def test_the_unit_gives_the_token_where_the_file_names_none(tmp_path):
    """A credential of the unit, else the file that it is made of; a file that is named comes first."""
    (tmp_path / "ray_token").write_text("x")
    unnamed = config("token_file: null")

    assert with_token(unnamed, "qwen2", {"CREDENTIALS_DIRECTORY": str(tmp_path)}).cluster.token_file == str(
        tmp_path / "ray_token"
    )
    assert with_token(unnamed, "qwen2", {}).cluster.token_file == "/etc/ascendd/keys/qwen2.ray"
    assert with_token(config(), "qwen2", {"CREDENTIALS_DIRECTORY": str(tmp_path)}).cluster.token_file == "/t"


@pytest.mark.parametrize("text", [None, "", " \n", "no-token"])
def test_a_node_without_a_token_is_not_started(tmp_path, text):
    """No file, an empty one and the unit's text for none are refused with what to make."""
    path = tmp_path / "token"
    if text is not None:
        path.write_text(text)

    with pytest.raises(ConfigInvalid, match="cannot be read or is empty") as caught:
        require_token(config(f"token_file: {path}"))
    assert "openssl rand -hex 32" in caught.value.remedy


def test_vllm_is_cut_in_layers_in_a_host_and_in_stages_over_hosts():
    """Tensor parallel is this host's, a stage of the pipeline is a host, and all traffic is on the one interface."""
    command = build(config(parallel="tensor_parallel_size: 4"), Address(path="/s"), {})
    argv = command.argv

    assert argv[argv.index("--tensor-parallel-size") + 1] == "4"
    assert argv[argv.index("--pipeline-parallel-size") + 1] == "2"
    assert argv[argv.index("--distributed-executor-backend") + 1] == "ray"
    assert command.env["RAY_ADDRESS"] == "10.0.0.1:6379"
    assert {command.env[name] for name in ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")} == {"eth1"}


@pytest.mark.parametrize(
    ("cluster", "engine", "parallel", "told"),
    [
        ("address: 0.0.0.0", "", "", "$.cluster.address = '0.0.0.0': is not the IP address of one host"),
        ("head: server1", "", "", "$.cluster.head = 'server1': is not the IP address of one host"),
        ("interface: a/b", "", "", "cluster.interface"),
        ("token_file: t", "", "", "$.cluster.token_file = 't': is not an absolute path"),
        ("", "", "pipeline_parallel_size: 2", "each host is one stage"),
        ("nodes: 1", "", "", "cluster.nodes"),
    ],
)
def test_what_no_cluster_can_be_is_refused_by_name(cluster, engine, parallel, told):
    """Each wrong key is named with its value and rule."""
    with pytest.raises(ConfigInvalid) as caught:
        config(cluster, engine, parallel)

    assert any(told in problem for problem in caught.value.facts["problems"]), caught.value.facts["problems"]


def test_the_native_engine_has_no_cluster():
    """It serves on one host, and says so."""
    with pytest.raises(ConfigInvalid) as caught:
        load_text(
            "model: {path: /m}\ncluster: {head: 10.0.0.1, address: 10.0.0.1, interface: e, nodes: 2, token_file: /t}",
            "x",
        )

    assert any("the native engine serves on one host" in problem for problem in caught.value.facts["problems"])


def test_a_host_that_came_back_is_not_away():
    """Ray remembers dead nodes of an address; one that joined anew is alive only."""
    out = 'noise\nNODES [["10.0.0.1", true], ["10.0.0.2", false], ["10.0.0.2", true], ["10.0.0.3", false]]\n'

    found = read_nodes("h", out, "")
    assert (found.alive, found.lost) == (("10.0.0.1", "10.0.0.2"), ("10.0.0.3",))


def test_what_a_host_says_of_itself_goes_with_its_node():
    """Labels hold letters, digits, dots and dashes only; those of others are none of ours."""
    argv, _ = start_command(config(), "cpu", {}, {"torch": "2.13.0+cpu", "empty": "+", "cann": "8.2.RC1"})
    line = 'NODES [["a", true, {"ascendd-torch": "2.13.0_cpu", "ray.io/node-id": "x"}], ["b", true]]'

    assert argv[argv.index("--labels") + 1] == "ascendd-torch=2.13.0_cpu,ascendd-cann=8.2.RC1"
    assert labels_of({"long": "v" * 100}) == "ascendd-long=" + "v" * 63
    assert read_line(line).facts == {"a": {"torch": "2.13.0_cpu"}, "b": {}}


def test_a_head_that_says_no_is_quoted():
    """The last line of its error is in ours."""
    with pytest.raises(EngineFault, match="cannot be asked: InvalidAuthToken"):
        read_nodes("10.0.0.1:6379", "", "Traceback\n  x\nInvalidAuthToken\n")


def test_vllm_waits_until_every_host_is_there():
    """Each look and each second between is a sign of progress that names who is away; a silent head is waited for."""
    answers = [EngineFault("no answer"), Nodes(("10.0.0.1",), ("10.0.0.2",)), Nodes(("10.0.0.1", "10.0.0.2"), ())]
    told = []

    async def ask() -> Nodes:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    asyncio.run(HostWait(config(), lambda phase, _: told.append(phase), ask, look_every_s=0.01).until_joined())

    assert answers == []
    assert told[0].startswith("waits for Ray: no answer")
    assert told[-1].startswith("waits for hosts: 1 of 2 joined (10.0.0.1); away: 10.0.0.2")
    assert missing_text(config().cluster, Nodes(("a", "b"), ())) == ""


def test_a_host_that_leaves_is_named():
    """Whoever was there and is not any more, also where Ray says nothing of it; a host too many changes nothing."""

    async def looks():
        yield Nodes(("10.0.0.1", "10.0.0.2", "10.0.0.3"), ())
        yield Nodes(("10.0.0.1", "10.0.0.2"), ())
        yield Nodes(("10.0.0.1",), ())

    with pytest.raises(WorkerLost, match=r"host 10\.0\.0\.2, 10\.0\.0\.3 left the cluster: 1 of 2 are there"):
        asyncio.run(HostWatch(config(), looks).until_lost())


@pytest.mark.parametrize("line", ["", "NODES", "NODES {", "WARNING: NODES [1]", 'nodes [["a", true]]'])
def test_what_a_library_prints_is_no_answer(line):
    """Only a whole line of nodes is one."""
    with pytest.raises(ValueError):  # noqa: PT011 - json's own error, or ours
        read_line(line)
