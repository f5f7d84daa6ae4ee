"""An instance with vLLM behind it, while nothing goes wrong: load, requests, figures, drain."""

from __future__ import annotations

import json
import re
import threading
import time

import pytest
from kept_daemon import TIMEOUT_S, KeptDaemon, eventually, gone

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def serving(tmp_path_factory):
    """Return a daemon that serves, for tests that leave it as it was."""
    extra = "preprocess: {whitespace: all, strip_html: true, system_prompt: Be brief., truncate: last, keep_last_tokens: 40}"
    daemon = KeptDaemon(tmp_path_factory.mktemp("kept"), [{"load_s": 3}], extra)
    daemon.wait_ready()
    yield daemon
    daemon.end()


def test_the_load_is_told_from_the_log(serving):
    """STATUS names weights and graphs with their share, and each step extends systemd's start timeout."""
    told = [state for state in serving.states if state.startswith("STATUS=")]

    assert any("loading weights" in state for state in told), told
    assert any("graphs" in state for state in told), told
    assert sum(state.startswith("EXTEND_TIMEOUT_USEC=") for state in serving.states) >= 4
    assert serving.states.index("READY=1") > serving.states.index("STATUS=self-test")


def test_settings_become_options_and_nothing_secret(serving):
    """VLLM gets our settings under its names, listens on a socket that only this user can reach, and no key."""
    (start,) = serving.starts()
    argv = start["argv"]

    assert argv[:2] == ["serve", str(serving.model)]
    assert argv[argv.index("--served-model-name") + 1] == "tiny"
    assert argv[argv.index("--max-num-seqs") + 1] == "64"
    assert argv[argv.index("--uds") + 1].startswith(str(serving.folder / "run"))
    assert start["env"]["HF_HUB_OFFLINE"] == "1"
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD" not in start["env"]


def test_a_request_goes_through_whole(serving):
    """The engine sees the client's fields and id, the client the engine's answer."""
    status, answer = serving.post(
        {"prompt": "one two", "max_tokens": 3, "top_k": 7}, headers={"X-Request-Id": "mine-1"}
    )

    assert status == 200
    assert answer["choices"][0]["text"] == "w0 w1 w2"
    assert answer["seen"]["top_k"] == 7
    assert answer["request_id"] == "mine-1"


def test_prompts_are_prepared_before_the_engine_reads_them(serving):
    """White space, HTML, the system prompt and the truncation of the instance are there for vLLM, too."""
    parts = [{"type": "text", "text": "<b>a</b>   b"}, {"type": "image_url", "image_url": {"url": "data:x"}}]
    messages = [{"role": "user", "content": "<i>hello</i>   you"}, {"role": "user", "content": parts}]
    seen = serving.post({"messages": messages, "max_tokens": 1}, "/v1/chat/completions")[1]["seen"]

    assert seen["messages"][0] == {"role": "system", "content": "Be brief."}
    assert seen["messages"][1]["content"] == "hello you"
    assert seen["messages"][2]["content"] == [{"type": "text", "text": "a b"}, parts[1]]
    assert seen["truncate_prompt_tokens"] == 40


def test_a_stream_comes_as_it_is_made(serving):
    """Events pass unchanged and at once; the usage that is asked of vLLM for the metrics is kept from who did not ask."""
    with serving.stream({"prompt": "hi", "max_tokens": 3}) as stream:
        plain = stream.read()
    with serving.stream({"prompt": "hi", "max_tokens": 3, "stream_options": {"include_usage": True}}) as stream:
        asked = stream.read()

    events = plain.decode().split("\n\n")[:-1]
    assert [json.loads(event[6:])["choices"][0]["text"] for event in events[:3]] == ["w0 ", "w1 ", "w2 "]
    assert events[3] == "data: [DONE]"
    assert '"completion_tokens":3' in asked.decode()


def test_the_engine_s_own_refusal_reaches_the_client(serving):
    """A 400 of vLLM keeps its words; another model is refused before vLLM is asked."""
    status, answer = serving.post({"prompt": "x", "max_tokens": 5000})
    other, unknown = serving.post({"prompt": "x", "model": "nobody"})

    assert (status, "maximum context length is 512" in answer["error"]["message"]) == (400, True)
    assert (other, unknown["error"]["code"]) == (404, "model_not_found")


def test_figures_of_both_are_on_one_page(serving):
    """VLLM's families are shown as they are, once each, beside ours; its other ones are not."""
    with serving.stream({"prompt": "hi", "max_tokens": 2}) as stream:
        stream.read()
    eventually(lambda: (serving.figure("vllm:generation_tokens_total") or 0) > 0)
    page = serving.get("/metrics", serving.metrics_port)[1].decode()

    types = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")]
    assert len(types) == len(set(types))
    assert 'vllm:cache_config_info{block_size="16",num_gpu_blocks="128"} 1.0' in page
    assert "python_info" not in page
    assert "vllm:request_queue_size" in page
    assert "ascendd_request_time_to_first_token_seconds_count" in page
    assert serving.figure("ascendd_engine_kv_blocks") == 128


def test_a_client_that_leaves_ends_its_sequence(serving):
    """VLLM sees the connection close and counts an abort."""
    aborted = serving.figure('vllm:request_success_total{engine="0",finished_reason="abort"}') or 0
    with serving.stream({"prompt": "hi", "max_tokens": 500}) as stream:
        stream.read(20)

    eventually(
        lambda: (serving.figure('vllm:request_success_total{engine="0",finished_reason="abort"}') or 0) > aborted
    )
    eventually(lambda: serving.figure("vllm:num_requests_running") == 0)


@pytest.mark.slow
def test_a_client_that_does_not_read_holds_up_only_itself(serving):
    """What it leaves unread fills a bounded buffer, then vLLM waits; others are served, and it gets all in the end."""
    made = serving.figure("vllm:generation_tokens_total") or 0
    with serving.stream({"prompt": "hi", "max_tokens": 400, "padding": 40_000}) as slow:
        eventually(lambda: serving.figure("vllm:num_requests_running") == 1)
        eventually(lambda: _rests(lambda: serving.figure("vllm:generation_tokens_total")))
        held = (serving.figure("vllm:generation_tokens_total") or 0) - made
        other = serving.post({"prompt": "me too", "max_tokens": 2})[0]
        rest = slow.read()

    assert 0 < held < 400
    assert other == 200
    assert rest.count(b'"index":0') == 400


def _rests(value, for_s=1.1) -> bool:
    before = value()
    time.sleep(for_s)
    return before is not None and value() == before


def test_readiness_stands_on_a_token(serving):
    """/readyz is 200 behind a token of vLLM, and of anybody's while it is busy."""
    assert serving.get("/readyz")[0] == 200
    assert serving.get("/livez")[0] == 200


def test_drain_finishes_what_runs_and_leaves_nobody(kept):
    """SIGTERM lets an open stream end, then vLLM and its engine core are gone and the status is 0."""
    daemon = kept([{"token_s": 0.02}])
    daemon.wait_ready()
    with daemon.stream({"prompt": "hi", "max_tokens": 60}) as stream:
        stream.read(20)
        family = daemon.family()
        rest = []
        reader = threading.Thread(target=lambda: rest.append(stream.read()))
        reader.start()
        status = daemon.end()
        reader.join(TIMEOUT_S)

    assert status == 0
    assert rest[0].endswith(b"data: [DONE]\n\n")
    assert all(gone(process.pid) for process in family)
    assert not list((daemon.folder / "run").glob("vllm-*"))


@pytest.mark.slow
def test_a_loopback_port_is_guarded_by_a_key_of_the_environment(kept):
    """With listen: loopback the key is in vLLM's environment, and neither in its arguments nor in the log."""
    daemon = kept(listen="loopback")
    daemon.wait_ready()
    (start,) = daemon.starts()
    key = start["env"]["VLLM_API_KEY"]

    assert len(key) >= 32
    assert key not in " ".join(start["argv"])
    assert key not in daemon.log
    assert start["argv"][start["argv"].index("--host") + 1] == "127.0.0.1"
    assert daemon.post({"prompt": "a", "max_tokens": 1})[0] == 200


@pytest.mark.slow
def test_vllm_is_started_once_every_host_has_joined(kept, tmp_path):
    """Until then STATUS names who is there and who is away, beyond the deadline of a load, and nothing is started."""
    cluster = "{head: 10.0.0.1, address: 10.0.0.1, interface: eth1, nodes: 2, token_file: /t}"
    (tmp_path / "nodes").write_text('NODES [["10.0.0.1", true], ["10.0.0.2", false]]\n')
    daemon = kept(extra=f"cluster: {cluster}\nhealth: {{load_deadline_s: 5}}")
    told = re.compile(r"waits for hosts: 1 of 2 joined \(10\.0\.0\.1\); away: 10\.0\.0\.2, for 1[2-9] s")
    eventually(lambda: any(told.search(state) for state in daemon.states), detail=lambda: daemon.log)
    assert daemon.starts() == []
    assert "no sign of progress" not in daemon.log

    daemon.nodes.write_text('NODES [["10.0.0.1", true], ["10.0.0.2", false], ["10.0.0.2", true]]\n')

    daemon.wait_ready()
    start = daemon.starts()[-1]
    assert start["argv"][start["argv"].index("--pipeline-parallel-size") + 1] == "2"
    assert start["env"]["RAY_ADDRESS"] == "10.0.0.1:6379"


@pytest.mark.slow
def test_a_lost_host_takes_readiness_away_and_is_waited_for(kept, tmp_path):
    """It is named in the log, /readyz and STATUS, nothing of vLLM stays, and it serves again once the host is back."""
    cluster = "{head: 10.0.0.1, address: 10.0.0.1, interface: eth1, nodes: 2, token_file: /t}"
    both = 'NODES [["10.0.0.1", true], ["10.0.0.2", true]]\n'
    (tmp_path / "nodes").write_text(both)
    daemon = kept(extra=f"cluster: {cluster}")
    daemon.wait_ready()
    assert daemon.get("/readyz")[0] == 200
    first = daemon.starts()[-1]["pid"]

    daemon.nodes.write_text('NODES [["10.0.0.1", true], ["10.0.0.2", false]]\n')

    eventually(lambda: daemon.get("/readyz")[0] == 503, detail=lambda: daemon.log)
    told = "waits for hosts: 1 of 2 joined (10.0.0.1); away: 10.0.0.2"
    eventually(lambda: told in daemon.get("/readyz")[1].decode(), detail=lambda: daemon.log)
    eventually(lambda: any(told in state for state in daemon.states), detail=lambda: daemon.log)
    assert "host 10.0.0.2 left the cluster: 1 of 2 are there" in daemon.log
    assert "ASD-E04" in daemon.log
    assert gone(first)
    assert len(daemon.starts()) == 1
    daemon.nodes.write_text(both)
    eventually(lambda: daemon.get("/readyz")[0] == 200, detail=lambda: daemon.log)
    assert daemon.post({"prompt": "again", "max_tokens": 2})[0] == 200


@pytest.mark.slow
def test_a_vllm_that_ends_over_a_lost_host_names_it(kept, tmp_path):
    """Its own words know an actor only; what the instance says has the address."""
    cluster = "{head: 10.0.0.1, address: 10.0.0.1, interface: eth1, nodes: 2, token_file: /t}"
    (tmp_path / "nodes").write_text('NODES [["10.0.0.1", true], ["10.0.0.2", true]]\n')
    daemon = kept(extra=f"cluster: {cluster}")
    daemon.wait_ready()
    daemon.nodes.write_text('NODES [["10.0.0.1", true], ["10.0.0.2", false]]\n')

    daemon.post({"prompt": "ACTOR", "max_tokens": 1})

    eventually(lambda: "host 10.0.0.2 left the cluster" in daemon.log, detail=lambda: daemon.log)
