"""What the real API process answers to bytes that are no request, or whose body is not what its head says."""

from __future__ import annotations

import gzip
import http.client
import json
import socket

import pytest

pytestmark = pytest.mark.system

SECRET = "sk-secretsecret"
GOOD = json.dumps({"model": "tiny", "prompt": "hello", "max_tokens": 2}).encode()


def _send(api, data: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send `data` and return status, headers and body of the answer."""
    with socket.create_connection((api.host, api.port), timeout=120) as sock:
        sock.sendall(data)
        response = http.client.HTTPResponse(sock)
        response.begin()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()


def _post(headers: str, body: bytes) -> bytes:
    return f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


@pytest.mark.parametrize(
    "data",
    [
        _post("Content-Encoding: gzip\r\n", GOOD),
        _post("Content-Encoding: deflate\r\n", GOOD),
        _post("Content-Encoding: gzip\r\n", gzip.compress(GOOD)[:-12]),
        _post("Content-Encoding: zzz\r\n", GOOD),
        _post("Content-Encoding: br\r\n", GOOD),
        _post("Expect: zzz\r\n", GOOD),
        _post(f"Authorization: Bearer {SECRET}{'x' * 20_000}\r\n", GOOD),
        f"GET /{'x' * 20_000} HTTP/1.1\r\nHost: x\r\n\r\n".encode(),
        b"NONSENSE\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHo st: x\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=[
        "plain-as-gzip", "plain-as-deflate", "cut-gzip", "unknown-coding", "plain-as-br", "expect", "long-header",
        "long-line", "nonsense", "version", "header-name", "length", "chunk", "tls",
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_400_in_our_shape(api, data):
    """Bytes that are no request, and bodies that are not what their head says, are a 400 in the error shape; nothing is echoed."""
    status, headers, body = _send(api, data)

    assert status == 400
    assert headers["content-type"].startswith("application/json")
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
    assert SECRET.encode() not in body
    assert SECRET not in api.log
    assert "Traceback" not in api.log
    assert api.alive()


def test_a_compressed_body_is_read(api):
    """A body that is what its Content-Encoding says is served."""
    status, _, body = _send(api, _post("Connection: close\r\nContent-Encoding: gzip\r\n", gzip.compress(GOOD)))

    assert status == 200
    assert json.loads(body)["usage"]["completion_tokens"] == 2


def test_a_body_that_unpacks_to_more_than_the_limit_is_413(api):
    """A small body that unpacks to more than listen.max_body_bytes is a 413, and does not grow the process by that much."""
    status, _, _ = _send(
        api, _post("Connection: close\r\nContent-Encoding: gzip\r\n", gzip.compress(b" " * 30_000_000))
    )

    assert status == 413
    assert api.alive()


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (b'{"model":"tiny","max_tokens":"ten"}', "max_tokens", 'is "ten"; it must be an integer or null'),
        (b'{"model":"tiny","temperature":true}', "temperature", "is true; it must be a number or null"),
        (b'{"model":"tiny","stop":[1]}', "stop[0]", "is 1; it must be a string"),
        (b'{"model":"tiny","max_tokens":1' + b"0" * 5000 + b"}", "max_tokens", "(5001 digits)"),
        (b'{"model":"tiny","temperature":1e999}', "temperature", "is 1e999"),
        (b'{"model":"tiny","prompt":"\\ud800"}', "prompt", "half of a surrogate pair"),
        (b'{"model":"tiny","logit_bias":{"1":"x"}}', "logit_bias", 'is {"1": "x"}; it must be'),
        (b'{"a":' * 100_000, None, "nested too deeply"),
    ],
    ids=["text", "bool", "list", "digits", "inf", "surrogate", "mapping", "depth"],
)
def test_what_is_wrong_is_shown(api, body, param, words):
    """B76: the message names the field, the value that was sent and what it must be."""
    answer = api.request("POST", "/v1/completions", body)

    assert answer.status == 400
    assert answer.error["param"] == param
    assert words in answer.error["message"]


def test_strict_refuses_what_nobody_knows(api, start_api, script):
    """A field that nobody knows is ignored; with `strict` in the request or in listen it is a 400 that names it."""
    strict_api = start_api(listen={"strict": True})
    strict_api.attach_engine(lambda _: script(strict_api.ids("hello ")))
    refused = [api.complete(strict=True, max_tokns=3), strict_api.complete(max_tokns=3)]

    assert api.complete(max_tokns=3, max_tokens=1).status == 200
    assert [answer.status for answer in refused] == [400, 400]
    assert {answer.error["param"] for answer in refused} == {"max_tokns"}
    assert strict_api.complete(max_tokens=1, user="me").status == 200


def test_tokens_go_both_ways(api):
    """/tokenize counts what a prompt or a chat becomes, and /detokenize gives the text back."""
    answer = api.request("POST", "/tokenize", {"model": "tiny", "prompt": "zqv", "return_token_strs": True})
    chat = api.request("POST", "/tokenize", {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]})
    back = api.request("POST", "/detokenize", {"model": "tiny", "tokens": answer.json["tokens"]})

    assert answer.json["tokens"] == api.ids("zqv")
    assert answer.json["count"] == len(answer.json["tokens"])
    assert "".join(answer.json["token_strs"]) == "zqv"
    assert answer.json["max_model_len"] == 128
    assert chat.json["tokens"] == api.ids("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert back.json == {"prompt": "zqv"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"prompt": 1}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [290]}, "tokens"),
        ("/v1/embeddings", {"input": "a", "model": "tiny"}, "model"),
    ],
)
def test_token_routes_refuse_clearly(api, path, body, param):
    """What the token routes cannot do is a 400 that names the field; embeddings are refused by name."""
    answer = api.request("POST", path, body)

    assert answer.status == 400
    assert answer.error["param"] == param
