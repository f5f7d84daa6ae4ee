"""The life of the real API process: clients that leave, engines that die, drains, the self-test, the end."""

from __future__ import annotations

import json
import signal
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ascendd.errors import DeviceOutOfMemory
from ascendd.ipc.messages import (
    Drain,
    Drained,
    EngineState,
    Fault,
    Heartbeat,
    RunSelfTest,
    SelfTestDone,
    Shutdown,
    Stats,
)

pytestmark = pytest.mark.system


def read_until(sock: socket.socket, marker: bytes) -> bytes:
    """Read until `marker` has come."""
    data = b""
    while marker not in data:
        piece = sock.recv(65536)
        assert piece, data
        data += piece
    return data


def read_to_end(sock: socket.socket) -> bytes:
    """Read until the stream ends."""
    data = b""
    while not data.endswith((b"0\r\n\r\n", b"[DONE]\n\n")):
        piece = sock.recv(65536)
        if not piece:
            break
        data += piece
    return data


def reset(sock: socket.socket) -> None:
    """Close with RST, as a client that was killed does."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


# --- clients that leave ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("leave", [socket.socket.close, reset], ids=["close", "reset"])
@pytest.mark.parametrize("state", ["waiting", "decode"])
def test_b55_b56_client_leaves(api, script, state, leave, stream):
    """B55, B56, B94: a client that leaves, before or after the first token, has its sequence aborted at once, quietly."""
    api.engine.script = lambda _: script(api.ids("hello "), held=state == "waiting", step_s=0.005)
    before = api.metric("ascendd_request_aborts_total")
    sock = api.open_stream("/v1/completions", {"prompt": "hi", "max_tokens": 100, "stream": stream})
    api.engine.wait(lambda: len(api.engine.running_ids) == 1)
    if state == "decode" and stream:
        read_until(sock, b"data: ")
    left_at = time.monotonic()
    leave(sock)
    api.engine.wait(lambda: bool(api.engine.aborted))

    assert time.monotonic() - left_at < 1.0
    assert api.engine.aborted == [api.engine.added[0].seq_id]
    deadline = time.monotonic() + 90
    while api.metric("ascendd_request_aborts_total") != before + 1:
        assert time.monotonic() < deadline
    assert '"status": 499' in api.log
    assert api.alive()


def test_b58_storm_of_aborts_leaves_nothing(api, script):
    """B58: after twenty clients left, no sequence is in work and the heartbeat says so."""
    api.engine.script = lambda _: script(api.ids("hello "), step_s=0.01)
    socks = [api.open_stream("/v1/completions", {"prompt": "hi", "max_tokens": 120}) for _ in range(16)]
    api.engine.wait(lambda: len(api.engine.running_ids) == 16)
    for sock in socks:
        reset(sock)
    api.engine.wait(lambda: not api.engine.running_ids)
    num_seen = len(api.messages)
    beat = api.wait_for(
        Heartbeat, condition=lambda m: api.messages.index(m) >= num_seen or (m.num_running, m.num_waiting) == (0, 0)
    )

    assert (beat.num_running, beat.num_waiting) == (0, 0)
    assert len(api.engine.aborted) == 16


# --- engines that fail -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_b04_failure_before_the_first_token(api, script, stream):
    """B04: a sequence that fails before its first token is a 503 with the reason, streamed or not."""
    api.engine.script = lambda _: script(api.ids("x"), fail_at=0, fault=DeviceOutOfMemory("no block is free"))
    answer = api.complete(stream=stream, max_tokens=5)

    assert answer.status == 503
    assert "no block is free" in answer.error["message"]
    assert int(answer.headers["retry-after"]) >= 1


def test_failure_inside_a_stream_is_an_event(api, script):
    """A failure after the first token is an error event; no [DONE] follows."""
    api.engine.script = lambda _: script(api.ids("hello world "), fail_at=3)
    events = api.complete(stream=True, max_tokens=20).events

    assert set(events[-1]) == {"error"}
    assert events[-1]["error"]["type"] == "server_error"
    assert "[DONE]" not in events
    assert api.alive()


@pytest.fixture(scope="module")
def own_api(start_api, script):
    """A process whose engines this module kills."""
    api = start_api(admission={"max_queue": 8, "restart_wait_s": 0})
    api.attach_engine(lambda _: script(api.ids("hello ")))
    return api


def test_requests_without_a_token_are_held_across_a_restart(start_api, script):
    """One given to the dead engine and one that came meanwhile are both answered by the next one, once."""
    api = start_api()
    api.attach_engine(lambda _: script(api.ids("hello "), die_at=0))
    with ThreadPoolExecutor(2) as pool:
        given = pool.submit(api.complete, max_tokens=2)
        deadline = time.monotonic() + 90
        while "api.requests_held" not in api.log:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        api.send(EngineState(ready=False, text="restarting in 1 s", retry_after_s=1))
        came = pool.submit(api.chat, max_tokens=2)
        held = [given.done(), came.done()]
        second = api.attach_engine(lambda _: script(api.ids("hello ")))
        answers = [given.result(20), came.result(20)]

    assert held == [False, False]
    assert [answer.status for answer in answers] == [200, 200]
    assert len(second.added) == 2
    assert api.metric("ascendd_requests_total", ("length",)) == 2
    assert "Traceback" not in api.log


def test_nobody_is_held_for_longer_than_restart_wait_s(start_api, script):
    """Both kinds of waiting end with a 503 and Retry-After that name what passed."""
    api = start_api(admission={"restart_wait_s": 0.3})
    api.attach_engine(lambda _: script(api.ids("hello "), die_at=0))
    refused = api.complete(max_tokens=2)
    api.send(EngineState(ready=False, text="restarting in 60 s", retry_after_s=60))
    deadline = time.monotonic() + 90
    while "restarting in 60 s" not in api.request("GET", "/readyz").body.decode():
        assert time.monotonic() < deadline
    came = api.complete(max_tokens=2)

    assert (refused.status, came.status) == (503, 503)
    assert "admission.restart_wait_s (0.3 s)" in refused.error["message"]
    assert came.error["message"] == "restarting in 60 s"
    assert int(refused.headers["retry-after"]) >= 1
    assert came.headers["retry-after"] == "60"


def test_b62_engine_death(own_api, script):
    """B62: when the engine dies, streams end with an error event, others with 503, probes say so at once; a new one serves."""
    own_api.engine.script = lambda _: script(own_api.ids("hello "), step_s=0.005)
    with ThreadPoolExecutor(3) as pool:
        stream = pool.submit(own_api.chat, stream=True, max_tokens=100)
        whole = pool.submit(own_api.complete, max_tokens=100)
        own_api.engine.wait(lambda: len(own_api.engine.running_ids) == 2)
        time.sleep(0.05)
        own_api.engine.die()
        died_at = time.monotonic()
        while own_api.request("GET", "/health").status == 200:
            assert time.monotonic() - died_at < 2
        events, refused = stream.result(10).events, whole.result(10)
    meanwhile = own_api.complete(max_tokens=1)
    own_api.send(EngineState(ready=False, text="restarting in 8 s", retry_after_s=8))
    deadline = time.monotonic() + 90
    while "restarting in 8 s" not in own_api.request("GET", "/readyz").body.decode():
        assert time.monotonic() < deadline
    told = own_api.complete(max_tokens=1)

    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert events[-1]["error"]["type"] == "service_unavailable_error"
    assert "[DONE]" not in events
    assert refused.status == meanwhile.status == told.status == 503
    assert told.headers["retry-after"] == "8"
    assert told.error["message"] == "restarting in 8 s"
    assert own_api.request("GET", "/livez").status == 200
    own_api.attach_engine(lambda _: script(own_api.ids("hello ")))
    assert own_api.complete(max_tokens=2).status == 200
    assert "Traceback" not in own_api.log


def test_probes_carry_no_names(own_api):
    """The open probes name neither model nor version."""
    answers = [own_api.request("GET", path) for path in ("/livez", "/readyz", "/health")]
    bodies = b"".join(answer.body for answer in answers)

    assert b"tiny" not in bodies
    assert b"0." not in bodies
    assert not any("server" in answer.headers for answer in answers)


def test_not_ready_until_the_engine_said_hello(start_api, script):
    """B62: before the engine is ready everything but /livez is a 503 with the state's own words and Retry-After."""
    api = start_api()
    api.send(EngineState(ready=False, text="loading 42 %", retry_after_s=3))
    deadline = time.monotonic() + 90
    while "loading 42 %" not in api.request("GET", "/readyz").body.decode():
        assert time.monotonic() < deadline
    ready, health, served = api.request("GET", "/readyz"), api.request("GET", "/health"), api.complete(max_tokens=1)

    assert (ready.status, health.status, served.status) == (503, 503, 503)
    assert ready.headers["retry-after"] == served.headers["retry-after"] == "3"
    assert api.request("GET", "/livez").status == 200
    assert api.request("GET", "/v1/models").json["data"][0]["max_model_len"] is None


# --- the probe behind /readyz --------------------------------------------------------------------------------------


def test_ready_means_that_the_engine_computed_a_token(start_api, script):
    """One probe answers everybody for seconds; where none is answered, /readyz says so within health.probe_timeout_s."""
    api = start_api(health={"probe_timeout_s": 0.5})
    engine = api.attach_engine(lambda _: script(api.ids("hello ")))
    api.wait_ready()
    many = [api.request("GET", path).status for path in ("/readyz", "/health") * 10]
    num_probes = engine.num_probes
    engine.answers_probes = False
    deadline = time.monotonic() + 90
    while (answer := api.request("GET", "/readyz")).status == 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)

    assert many == [200] * 20
    assert num_probes <= 2
    assert answer.status == 503
    assert "the engine has computed no token for" in answer.body.decode()
    assert api.request("GET", "/livez").status == 200


def test_a_probe_that_fails_is_the_reason(start_api, script):
    """What the engine says of a failed probe is what /readyz says."""
    api = start_api()
    engine = api.attach_engine(lambda _: script(api.ids("hello ")), ready=False)
    engine.probe_fault = Fault("ASD-D03", "no memory")
    api.send(EngineState(ready=True, text="serving"))
    deadline = time.monotonic() + 90
    while "the engine computed no token: ASD-D03 no memory" not in api.request("GET", "/readyz").body.decode():
        assert time.monotonic() < deadline

    engine.probe_fault = None

    assert api.request("GET", "/readyz").status == 200


def test_a_degraded_instance_is_ready_and_says_what_it_lacks(start_api, script):
    """Status 200 with `degraded` and the reason, until it is over."""
    api = start_api()
    api.attach_engine(lambda _: script(api.ids("hello ")))
    api.wait_ready()
    api.send(EngineState(ready=True, text="serving", degraded="KV cache of 90 blocks"))
    deadline = time.monotonic() + 90
    while (answer := api.request("GET", "/readyz")).json != {"status": "degraded", "reason": "KV cache of 90 blocks"}:
        assert time.monotonic() < deadline

    assert answer.status == 200
    assert api.complete(max_tokens=1).status == 200


def test_under_memory_pressure_new_requests_are_refused_by_name(start_api, script):
    """503 with ASD-R18 and Retry-After for what is new, on /readyz too; what runs goes on, and the end of it is the end."""
    api = start_api()
    engine = api.attach_engine(lambda _: script(api.ids("hello hello "), held=True))
    api.wait_ready()
    running = threading.Thread(target=lambda: answers.append(api.complete(max_tokens=2)))
    answers = []
    running.start()
    engine.wait(lambda: bool(engine.running_ids))
    api.send(EngineState(ready=True, text="serving", pressure="12 MB of 4096 MB host memory are left"))
    deadline = time.monotonic() + 90
    while (ready := api.request("GET", "/readyz")).status == 200:
        assert time.monotonic() < deadline
    refused = api.complete(max_tokens=1)
    engine.release.set()
    running.join(20)
    api.send(EngineState(ready=True, text="serving"))
    while api.request("GET", "/readyz").status != 200:
        assert time.monotonic() < deadline

    assert (ready.status, refused.status) == (503, 503)
    assert refused.headers["retry-after"] == "10"
    assert refused.error["message"] == "no new requests are taken: 12 MB of 4096 MB host memory are left"
    assert answers[0].status == 200
    assert api.complete(max_tokens=1).status == 200


# --- self-test -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_self_test_passes_before_ready(start_api, script, tmp_path, host):
    """RunSelfTest gets one real token over the listener, with keys on and before readiness, and is not counted as traffic."""
    keys = tmp_path / "keys"
    keys.write_text("k-1\n", encoding="utf-8")
    api = start_api(host=host, listen={"api_key_file": str(keys)})
    engine = api.attach_engine(lambda _: script(api.ids("hello ")), ready=False)
    api.send(RunSelfTest(episode=4))
    done = api.wait_for(SelfTestDone)

    assert done.fault is None
    assert done.episode == 4
    assert done.latency_s > 0
    assert engine.added[0].params.max_tokens == 1
    assert api.request("GET", "/readyz").status == 503
    assert api.metric("ascendd_requests_total", ("length",)) == 0


@pytest.mark.parametrize(
    ("fail_at", "words"), [(0, "answered 503"), (None, "no token came back")], ids=["fails", "hangs"]
)
def test_self_test_reports_what_went_wrong(start_api, script, fail_at, words):
    """An engine that fails or hangs is a SelfTestFailed with the reason."""
    api = start_api(health={"self_test_timeout_s": 1.0})
    engine = api.attach_engine(
        lambda _: script([5], fail_at=fail_at, held=fail_at is None, fault=DeviceOutOfMemory("no room")), ready=False
    )
    api.send(RunSelfTest(episode=1))
    done = api.wait_for(SelfTestDone)

    assert done.fault is not None
    assert done.fault.code == "ASD-E06"
    assert words in done.fault.message
    engine.wait(lambda: not engine.running_ids)


# --- drain and end ---------------------------------------------------------------------------------------------------


def test_b66_b68_drain_lets_streams_finish(start_api, script):
    """B66, B68: a drain refuses new requests with 503, lets streams flow to [DONE] without a stall, then reports Drained."""
    api = start_api()
    api.attach_engine(lambda _: script(api.ids("hello "), step_s=0.02))
    gaps: list[float] = []

    def follow(sock):
        data, last = b"", time.monotonic()
        while b"[DONE]" not in data:
            data += sock.recv(65536)
            gaps.append(time.monotonic() - last)
            last = time.monotonic()
        return data

    with ThreadPoolExecutor(3) as pool:
        socks = [api.open_stream("/v1/completions", {"prompt": "hi", "max_tokens": 40}) for _ in range(3)]
        heads = [read_until(sock, b"data: ") for sock in socks]
        followers = [pool.submit(follow, sock) for sock in socks]
        api.send(Drain(deadline_s=20))
        deadline = time.monotonic() + 90
        while api.request("GET", "/readyz").status == 200:
            assert time.monotonic() < deadline
        refused = api.complete(max_tokens=1)
        texts = [head + follower.result(20) for head, follower in zip(heads, followers, strict=True)]
    drained = api.wait_for(Drained)
    for sock in socks:
        sock.close()
    api.send(Shutdown())

    assert refused.status == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert all(b"[DONE]" in text for text in texts)
    assert max(gaps) < 1.0
    assert drained.num_aborted == 0
    assert api.process.wait(10) == 0
    assert "Traceback" not in api.log


def test_drain_cuts_off_at_its_deadline(start_api, script):
    """What is not finished by the deadline ends with an error event and is aborted at the engine."""
    api = start_api()
    engine = api.attach_engine(lambda _: script(api.ids("hello "), step_s=0.02))
    sock = api.open_stream("/v1/completions", {"prompt": "hi", "max_tokens": 120})
    read_until(sock, b"data: ")
    api.send(Drain(deadline_s=0.2))
    rest = read_to_end(sock)
    drained = api.wait_for(Drained)
    sock.close()

    assert b'"error"' in rest
    assert b"[DONE]" not in rest
    assert drained.num_aborted == 1
    engine.wait(lambda: not engine.running_ids)


def test_b69_end_of_the_supervisor_ends_the_process(start_api, script):
    """B69: when the control link ends the process leaves at once with 0, streams or not."""
    api = start_api()
    api.attach_engine(lambda _: script(api.ids("hello "), step_s=0.02))
    sock = api.open_stream("/v1/completions", {"prompt": "hi", "max_tokens": 120})
    read_until(sock, b"data: ")
    api.control_socket.shutdown(socket.SHUT_RDWR)

    assert api.process.wait(5) == 0
    sock.close()


def test_ctrl_c_is_the_supervisor_s(own_api):
    """SIGINT from the terminal does not end the child; the supervisor decides."""
    own_api.process.send_signal(signal.SIGINT)
    time.sleep(0.2)

    assert own_api.process.poll() is None
    assert own_api.request("GET", "/livez").status == 200


# --- load ------------------------------------------------------------------------------------------------------------


def test_b93_slow_readers_are_cut_off(start_api, script):
    """B93: streams that nobody reads are aborted within bounds, without [DONE]; a normal one beside them is served."""
    api = start_api()
    engine = api.attach_engine(lambda _: script(api.ids("hello world ")), max_model_len=400_000, max_num_seqs=16)
    stuck = [
        api.open_stream("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, receive_buffer=4096)
        for _ in range(3)
    ]
    engine.wait(lambda: len(engine.added) == 3)
    normal = api.complete(max_tokens=50, stream=True)
    engine.wait(lambda: len(engine.aborted) >= 3, 60)

    assert normal.events[-1] == "[DONE]"
    assert sorted(engine.aborted) == [add.seq_id for add in engine.added[:3]]
    for sock in stuck:
        reset(sock)
    engine.wait(lambda: not engine.running_ids)
    assert api.alive()


def test_b64_b65_health_is_quick_under_load(start_api, script):
    """B64, B65: with 64 streams and long prompts to tokenise, /health answers in under a second."""
    api = start_api()
    engine = api.attach_engine(lambda _: script(api.ids("hello world "), step_s=0.04), max_num_seqs=128)
    socks = [api.open_stream("/v1/completions", {"prompt": "hi", "max_tokens": 120}) for _ in range(64)]
    engine.wait(lambda: len(engine.added) == 64)
    done = threading.Event()

    def read_all() -> int:
        return sum(b"[DONE]" in read_to_end_marker(sock) for sock in socks)

    def read_to_end_marker(sock: socket.socket) -> bytes:
        data = b""
        while b"[DONE]" not in data:
            data += sock.recv(65536)
        return data

    def long_prompts() -> list[int]:
        statuses = []
        while not done.is_set():
            statuses.append(api.complete(prompt="twenty thousand words " * 7000).status)
        return statuses

    times, statuses = [], []
    with ThreadPoolExecutor(3) as pool:
        finished, refused = pool.submit(read_all), pool.submit(long_prompts)
        while not finished.done() or len(times) < 50:
            started = time.monotonic()
            statuses.append(api.request("GET", "/health").status)
            times.append(time.monotonic() - started)
            time.sleep(0.05)
        done.set()
    times.sort()
    for sock in socks:
        sock.close()

    assert finished.result() == 64
    assert set(refused.result()) == {400}
    assert set(statuses) == {200}
    print(f"health p99 {times[int(len(times) * 0.99)]:.3f} s over {len(times)}")
    assert times[int(len(times) * 0.99)] < 1.0, times[-5:]


def test_b60_figures_of_requests(start_api, script):
    """B60: the first-token histogram counts the requests that got a token; counters tell how requests ended."""
    api = start_api()
    api.attach_engine(lambda _: script(api.ids("hello world "), step_s=0.002))
    api.complete(max_tokens=4)
    api.chat(max_tokens=4, n=2, stream=True)
    api.complete(max_tokens=0)
    api.engine.script = lambda _: script([5], held=True)
    sock = api.open_stream("/v1/completions", {"prompt": "hi"})
    api.engine.wait(lambda: len(api.engine.running_ids) == 1)
    sock.close()
    api.engine.wait(lambda: not api.engine.running_ids)
    api.metric("ascendd_requests_total")
    api.metric("ascendd_requests_total")
    stats = [m for m in api.messages if isinstance(m, Stats)][-1]
    values = {(s.name, s.labels): s for s in stats.samples}

    first = values["ascendd_request_time_to_first_token_seconds", ()]
    assert sum(first.buckets) == 2
    assert first.value > 0
    assert sum(values["ascendd_request_inter_token_seconds", ()].buckets) == 9
    assert values["ascendd_requests_total", ("length",)].value == 2
    assert values["ascendd_requests_total", ("abort",)].value == 1
    assert values["ascendd_http_responses_total", ("/v1/completions", "400")].value == 1
    assert values["ascendd_request_aborts_total", ()].value == 1


def test_garbage_on_the_port_is_one_quiet_line(own_api):
    """What is not HTTP, such as a TLS hello, is refused with no traceback in the log."""
    for data in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64,
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
    ):
        with socket.create_connection((own_api.host, own_api.port), timeout=120) as sock:
            sock.sendall(data)
            assert sock.recv(4096).startswith((b"HTTP/1.0 400", b"HTTP/1.1 400"))

    assert "Traceback" not in own_api.log
    assert all(json.loads(line) for line in own_api.log.splitlines())
