"""What the real API process refuses, and that it lives on: validation, keys, sizes, admission."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from ascendd.ipc.messages import ChildFault

pytestmark = pytest.mark.system

KEY = "k-9d41f0c2"
LONG = "the lazy dog " * 60


@pytest.mark.parametrize(
    ("case", "path", "body", "param"),
    [
        ("B20", "chat/completions", {"stop_token_ids": [290], "min_tokens": 1, "max_tokens": 3}, "stop_token_ids"),
        ("B21", "chat/completions", {"logit_bias": {"191222": -100}}, "logit_bias"),
        ("B22", "chat/completions", {"logit_bias": {"AI": -100}}, "logit_bias"),
        ("B24", "completions", {"prompt": [-1], "max_tokens": 2}, "prompt"),
        ("B25", "completions", {"prompt": [290]}, "prompt"),
        ("B25", "completions", {"allowed_token_ids": [290]}, "allowed_token_ids"),
        ("B26", "completions", {"prompt": ""}, "prompt"),
        ("B26", "completions", {"prompt": [""]}, "prompt"),
        ("B26", "completions", {"prompt": []}, "prompt"),
        ("B26", "completions", {"prompt": [[]]}, "prompt"),
        ("B26", "completions", {"prompt": ["a", ""]}, "prompt"),
        ("B28", "completions", {"max_tokens": 0}, "max_tokens"),
        ("B31", "chat/completions", {"messages": [{"role": "user", "content": LONG}]}, "messages"),
        ("B32", "completions", {"prompt": "a " * 50, "max_tokens": 1000}, "prompt"),
        ("B48", "completions", {"seed": 18446744073709551616}, "seed"),
        ("B48", "completions", {"max_tokens": 10**30}, "max_tokens"),
        ("B48", "completions", {"stop_token_ids": [2**70]}, "stop_token_ids"),
        ("B53", "completions", {"best_of": 129}, "best_of"),
        ("B53", "completions", {"best_of": 1, "n": 2}, "best_of"),
        ("B53", "completions", {"best_of": 2, "stream": True}, "best_of"),
        ("B76", "completions", {"max_tokens": "ten"}, "max_tokens"),
        ("B76", "completions", {"temperature": True}, "temperature"),
        ("B76", "completions", {"prompt": {"a": 1}}, "prompt"),
        ("B81", "chat/completions", {"response_format": {"type": "json_schema"}}, "response_format"),
        ("B86", "chat/completions", {"messages": []}, "messages"),
        ("B100", "completions", {"bad_words": [""]}, "bad_words"),
        ("B100", "completions", {"stop": ["", "x"]}, "stop"),
        ("B100", "completions", {"stop": [1]}, "stop[0]"),
        ("B102", "chat/completions", {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ("B102", "chat/completions", {"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
        ("B102", "chat/completions", {"chat_template_kwargs": "x"}, "chat_template_kwargs"),
    ],
    ids=lambda value: json.dumps(value)[:48] if isinstance(value, dict) else None,
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_field_is_400_and_the_engine_lives(api, case, path, body, param, stream):
    """A bad field is a 400 that names it, streamed or not; no sequence reaches the engine, and the next one is served."""
    base: dict[str, Any] = {"model": "tiny", "stream": stream}
    base |= {"prompt": "hi"} if path == "completions" else {"messages": [{"role": "user", "content": "hi"}]}
    answer = api.request("POST", f"/v1/{path}", {**base, **body})

    assert answer.status == 400, (case, answer.body)
    assert answer.error["param"] == param
    assert answer.error["type"] == "invalid_request_error"
    assert answer.headers["content-type"].startswith("application/json")
    assert api.engine.added == []
    assert api.alive()


def test_b31_b33_long_prompt_is_explained(api):
    """B31, B33: a prompt beyond the context is refused with all figures and never cut."""
    answer = api.chat(messages=[{"role": "user", "content": LONG}])
    num_tokens = len(api.ids(f"<|im_start|>user\n{LONG}<|im_end|>\n<|im_start|>assistant\n"))

    assert answer.error["code"] == "context_length_exceeded"
    assert "128 tokens" in answer.error["message"]
    assert f"the prompt has {num_tokens}" in answer.error["message"]


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"", b'{"model": "tiny", "temperature": NaN}', b'"x"', b"\xff"], ids=repr
)
def test_b76_body_that_is_no_json_object(api, body):
    """B76: a body that is not a JSON object is a 400 in the error shape, with a `param` member."""
    answer = api.request("POST", "/v1/completions", body)

    assert answer.status == 400
    assert answer.error["param"] is None
    assert answer.error["code"] == "invalid_json"


@pytest.mark.parametrize("stream", [False, True])
def test_b77_unknown_model(api, stream):
    """B77, B78: a model that is not served is a 404 with code model_not_found, streamed or not."""
    answer = api.complete(model="lora-x", stream=stream)

    assert answer.status == 404
    assert answer.error["code"] == "model_not_found"
    assert answer.error["param"] == "model"
    assert api.engine.added == []


def test_b104_models(api):
    """B104: the list names the one model, with no path of the file system; an unknown one is a 404."""
    answer = api.request("GET", "/v1/models")
    one = api.request("GET", "/v1/models/tiny")

    assert [card["id"] for card in answer.json["data"]] == ["tiny"]
    assert "/" not in json.dumps(answer.json)
    assert answer.json["data"][0] == one.json
    assert one.json["max_model_len"] == 128
    assert api.request("GET", "/v1/models/other").status == 404


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "unknown_url"),
        ("GET", "/metric", 404, "unknown_url"),
        ("GET", "/v1/completions", 405, "ASD-R07"),
        ("DELETE", "/v1/models", 405, "ASD-R07"),
    ],
)
def test_routes_that_do_not_exist(api, method, path, status, code):
    """Unknown paths and methods are answered in the error shape."""
    answer = api.request(method, path)

    assert answer.status == status
    assert answer.error["code"] == code


def test_b54_same_request_id_twice(api):
    """B54: the caller's X-Request-Id comes back and is a label only: ids of answers and sequences differ."""
    headers = {"X-Request-Id": "test-0"}
    first, second = api.complete(headers, max_tokens=2), api.complete(headers, max_tokens=2)

    assert first.headers["x-request-id"] == second.headers["x-request-id"] == "test-0"
    assert first.json["id"] != second.json["id"]
    assert len({add.seq_id for add in api.engine.added}) == 2
    assert [add.request_id for add in api.engine.added] == ["test-0", "test-0"]
    assert (
        api.complete({"X-Request-Id": "bad id\twith spaces"}, max_tokens=1).headers["x-request-id"].startswith("req-")
    )


def test_unknown_fields_are_ignored(api):
    """Fields that nobody knows, and neutral values of those not done, are accepted."""
    answer = api.chat(
        max_tokens=2, presence_penalty=0, logprobs=False, user="u", some_future_field={"a": 1}, tools=None
    )

    assert answer.status == 200, answer.body


# --- a process with keys ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def locked_api(start_api, script, tmp_path_factory):
    """A process with a key, a body limit of 4 kB, and a queue of one."""
    path: Path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(f"# team\n{KEY}\n", encoding="utf-8")
    path.chmod(0o600)
    api = start_api(
        listen={"api_key_file": str(path), "max_body_bytes": "4KB"},
        admission={"max_queue": 1, "request_timeout_s": 1.5},
    )
    api.attach_engine(lambda _: script(api.ids("hello "), held=True), max_num_seqs=2)
    return api


def test_b72_every_route_needs_the_key(locked_api):
    """B72: without a key all routes but the three probes are 401, unknown ones too."""
    closed = [
        ("POST", "/v1/completions"), ("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/v1/models/tiny"),
        ("GET", "/"), ("POST", "/invocations"), ("GET", "/metrics"), ("GET", "/livez/"), ("GET", "//health"),
    ]  # fmt: skip
    statuses = {f"{method} {path}": locked_api.request(method, path).status for method, path in closed}

    assert set(statuses.values()) == {401}, statuses
    assert [locked_api.request("GET", path).status for path in ("/livez", "/readyz", "/health")] == [200, 200, 200]


@pytest.mark.parametrize(
    "header", ["Bearer wrong", f"Basic {KEY}", None, "Bearer"], ids=["wrong", "Basic", "none", "empty"]
)
def test_b74_wrong_key(locked_api, header):
    """B74: a wrong or missing key is a 401 with the error object and WWW-Authenticate, before the body is looked at."""
    answer = locked_api.request(
        "POST", "/v1/completions", b"{ no json", {} if header is None else {"Authorization": header}
    )

    assert answer.status == 401
    assert answer.error["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"].startswith("Bearer")


def test_b74_the_body_is_not_awaited(locked_api):
    """B74: the 401 comes although the announced body never does."""
    with socket.create_connection((locked_api.host, locked_api.port), timeout=120) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
        head = sock.recv(4096)

    assert head.startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_right_key_passes(locked_api, scheme):
    """B74: the key is accepted whatever the scheme's case."""
    assert locked_api.request("GET", "/v1/models", None, {"Authorization": f"{scheme} {KEY}"}).status == 200


def test_b76_413_is_not_invalid_json(locked_api):
    """B76: a body over the limit is a 413, announced or chunked, and not called invalid JSON."""
    headers = {"Authorization": f"Bearer {KEY}"}
    announced = locked_api.request("POST", "/v1/completions", b"x" * 5000, headers)
    chunked = _post_chunked(locked_api, b"x" * 5000, headers)

    assert announced.status == 413
    assert "JSON" not in announced.error["message"]
    assert chunked.startswith(b"HTTP/1.1 413")


def test_queue_full_is_429_and_deadline_504(locked_api):
    """More sequences than the batch and the queue hold are a 429 with Retry-After; those inside end at their deadline with 504."""
    headers = {"Authorization": f"Bearer {KEY}"}
    engine = locked_api.engine
    opened = [_open(locked_api, headers) for _ in range(3)]
    engine.wait(lambda: len(engine.running_ids) == 3)
    refused = locked_api.complete(headers, max_tokens=1)
    too_many = locked_api.complete(headers, max_tokens=1, n=4)
    heads = [sock.recv(4096) for sock in opened]
    for sock in opened:
        sock.close()

    assert refused.status == 429
    assert refused.error["type"] == "rate_limit_error"
    assert int(refused.headers["retry-after"]) >= 1
    assert too_many.status == 400
    assert all(head.startswith(b"HTTP/1.1 504") for head in heads)
    engine.wait(lambda: not engine.running_ids)
    assert all(add.deadline_s > 0 for add in engine.added)


def test_b73_b98_no_key_and_no_prompt_in_log_or_process(locked_api):
    """B73, B98: neither keys nor prompts are in the log, the command line or the environment; the log has one line a request."""
    locked_api.complete({"Authorization": f"Bearer {KEY}"}, prompt="confidential words", max_tokens=0)
    locked_api.complete({"Authorization": "Bearer sk-wrongkey123"}, prompt="confidential words")
    proc = Path(f"/proc/{locked_api.process.pid}")
    everything = locked_api.log.encode() + (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()

    assert KEY.encode() not in everything
    assert b"wrongkey" not in everything
    assert b"confidential" not in everything
    lines = [json.loads(line) for line in locked_api.log.splitlines() if '"api.request"' in line]
    assert {401, 400} <= {line["status"] for line in lines}
    assert all({"route", "status", "duration_s", "request_id"} <= set(line) for line in lines)


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [(None, 78, "does not exist"), ("# nothing\n", 78, "holds no key")],
    ids=["missing", "empty"],
)
def test_bad_key_file_stops_the_start(start_api, tmp_path, text, status, words):
    """A key file that is missing or empty ends the process with the exit status for configuration and a clear fault."""
    path = tmp_path / "keys"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    api = start_api(wait=False, listen={"api_key_file": str(path)})
    fault = api.wait_for(ChildFault)

    assert re.search(words, fault.fault.message)
    assert str(path) in fault.fault.message
    assert api.process.wait(10) == status


def _open(api, headers):
    data = json.dumps({"model": "tiny", "prompt": "hello", "max_tokens": 50}).encode()
    lines = [f"{k}: {v}" for k, v in {**headers, "Content-Length": len(data), "Host": "x"}.items()]
    sock = socket.create_connection((api.host, api.port), timeout=120)
    sock.sendall(("POST /v1/completions HTTP/1.1\r\n" + "\r\n".join(lines) + "\r\n\r\n").encode() + data)
    return sock


def _post_chunked(api, data, headers):
    head = "".join(f"{k}: {v}\r\n" for k, v in {**headers, "Transfer-Encoding": "chunked", "Host": "x"}.items())
    with socket.create_connection((api.host, api.port), timeout=120) as sock:
        sock.sendall(f"POST /v1/completions HTTP/1.1\r\n{head}\r\n{len(data):x}\r\n".encode() + data + b"\r\n0\r\n\r\n")
        return sock.recv(4096)
