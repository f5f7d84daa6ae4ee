"""The gateway before instances whose every answer is known: fallback, streams, keys, refusals, reload."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from ascendd.config.credentials import Credential, digest_of

if TYPE_CHECKING:
    from .conftest import Process, ScriptedInstance  # type: ignore[import-not-found]

pytestmark = pytest.mark.system
MESSAGES = [{"role": "user", "content": "hello"}]
CHAT = "/v1/chat/completions"


@dataclass
class House:
    """A gateway before two instances: `big` and `small`, each with its own model."""

    gateway: Process
    big: ScriptedInstance
    small: ScriptedInstance
    config: dict[str, Any]
    path: Path
    script: type

    def reset(self) -> None:
        """Have both answer well and forget what they saw."""
        for instance in (self.big, self.small):
            instance.script = self.script()
            instance.bodies.clear()
            instance.seen_headers.clear()

    def chat(self, **fields: Any) -> Any:
        """Ask for a chat with the key of team-a."""
        headers = {"Authorization": "Bearer client-key-a"}
        return self.gateway.ask(CHAT, {"model": "auto", "messages": MESSAGES, **fields}, headers)


@pytest.fixture(scope="module")
def _house(
    start_gateway: Callable[..., Process],
    scripted: Callable[[str], ScriptedInstance],
    tmp_path_factory: pytest.TempPathFactory,
) -> House:
    folder = tmp_path_factory.mktemp("house")
    (folder / "clients").write_text(
        "".join(
            Credential(f"team-{team}", digest_of(f"client-key-{team}"), frozenset({"infer"})).line() + "\n"
            for team in "ab"
        )
    )
    (folder / "upstream").write_text("gateway-own-key\n")
    big, small = scripted("big"), scripted("small")
    config: dict[str, Any] = {
        "listen": {"port": 0, "api_key_file": str(folder / "clients")},
        "instances": [
            {"name": "big", "url": big.url, "api_key_file": str(folder / "upstream")},
            {"name": "small", "url": small.url},
        ],
        "rules": [
            {"name": "audio", "when": {"modality": "audio"}, "refuse": "audio is not served here yet"},
            {"name": "watched", "dry_run": True, "when": {"key": "team-a"}, "to": "small"},
            {"name": "b-only", "when": {"key": "team-b"}, "to": "small"},
            {"name": "creative", "when": {"temperature": ">= 0.8"}, "to": ["big", "small"]},
            {"name": "short", "when": {"max_tokens": "< 128"}, "to": ["small", "big"]},
        ],
    }
    path = folder / "gateway.yaml"
    gateway = start_gateway(config, path)
    return House(gateway, big, small, yaml.safe_load(path.read_text()), path, type(big.script))


@pytest.fixture
def house(_house: House, eventually: Callable[..., None]) -> House:
    """The house with both instances up and free."""
    _house.reset()
    for instance in (_house.big, _house.small):
        instance.ready_status = 200

    def is_whole() -> bool:
        answers = [_house.chat(model=name) for name in ("big", "small")]
        return all(answer.status == 200 for answer in answers)

    eventually(is_whole, "both instances up and free")
    _house.reset()
    return _house


def test_rules_choose_and_the_body_is_otherwise_kept(house: House) -> None:
    """The instance gets its own model's name and every other field as it came; the client is told who answered."""
    answer = house.chat(temperature=0.9, custom={"x": [1, 2.5, "ü"]})

    assert answer.status == 200
    assert answer.json == {"model": "big", "by": "big"}
    assert answer.headers["x-ascendd-instance"] == "big"
    assert answer.headers["x-ascendd-rule"] == "creative"
    assert house.big.bodies == [
        {"model": "big", "messages": MESSAGES, "temperature": 0.9, "custom": {"x": [1, 2.5, "ü"]}}
    ]
    assert house.small.bodies == []


@pytest.mark.parametrize(("status", "headers"), [(503, {}), (429, {"Retry-After": "7"}), (502, {})])
def test_an_instance_that_cannot_is_passed_over(house: House, status: int, headers: dict[str, str]) -> None:
    """The next model of the rule answers, and the client sees nothing of it."""
    house.big.script = house.script(status=status, headers=headers)
    answer = house.chat(temperature=0.9)

    assert answer.status == 200
    assert answer.headers["x-ascendd-instance"] == "small"
    assert house.small.bodies[0]["model"] == "small"


def test_a_model_that_is_named_has_no_stand_in(house: House) -> None:
    """Its instance is full, so the client is told when to come back; the other instance is not asked."""
    house.big.script = house.script(status=429, headers={"Retry-After": "7"})
    answer = house.chat(model="big", temperature=0.9)

    assert answer.status == 429
    assert answer.headers["retry-after"] == "7"
    assert answer.json["error"]["type"] == "rate_limit_error"
    assert house.small.bodies == []


def test_a_fault_of_the_request_is_passed_on(house: House) -> None:
    """A 400 of an instance is the client's own affair and is not tried elsewhere."""
    house.big.script = house.script(status=400)
    answer = house.chat(temperature=0.9)

    assert answer.status == 400
    assert answer.json["error"]["message"] == "big says 400"
    assert house.small.bodies == []


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_json"),
        (b"[]", 400, "invalid_json"),
        ({"messages": MESSAGES}, 400, "ASD-R02"),
        ({"model": "gpt-4", "messages": MESSAGES}, 404, "model_not_found"),
        ({"model": "auto", "messages": MESSAGES}, 400, "no_rule"),
        (
            {"model": "auto", "messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            400,
            "refused_by_rule",
        ),
        (
            {"model": "big", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            400,
            "unsupported_modality",
        ),
    ],
)
def test_refusals_are_in_openai_shape(house: House, body: Any, status: int, code: str) -> None:
    """No instance is asked, and the error says what to do."""
    answer = house.gateway.ask(CHAT, body, {"Authorization": "Bearer client-key-a"})

    assert answer.status == status, answer.body
    assert answer.json["error"]["code"] == code
    assert len(answer.json["error"]["message"]) > 20
    assert house.big.bodies == house.small.bodies == []


def test_audio_is_refused_clearly_on_its_own_route(house: House) -> None:
    """The answer is the operator's sentence, whatever the form of the body."""
    headers = {"Authorization": "Bearer client-key-a", "Content-Type": "multipart/form-data; boundary=x"}
    answer = house.gateway.ask("/v1/audio/transcriptions", b"--x--", headers)

    assert answer.status == 400
    assert "audio is not served here yet" in answer.json["error"]["message"]


def test_keys_stay_where_they_belong(house: House) -> None:
    """A client's key never reaches an instance; the gateway sends its own, and neither is in its log."""
    house.chat(temperature=0.9)
    house.chat(max_tokens=5)
    unknown = house.gateway.ask(CHAT, {"model": "big", "messages": MESSAGES}, {"Authorization": "Bearer guess"})
    missing = house.gateway.ask(CHAT, {"model": "big", "messages": MESSAGES})

    assert house.big.seen_headers[0]["authorization"] == "Bearer gateway-own-key"
    assert "authorization" not in house.small.seen_headers[0]
    assert (unknown.status, missing.status) == (401, 401)
    assert house.gateway.ask("/v1/models").status == 401
    assert house.gateway.ask("/readyz").status == 200
    log = house.gateway.log_path.read_text()
    assert not any(key in log for key in ("client-key", "gateway-own-key", "guess"))


def test_a_key_can_be_a_condition(house: House) -> None:
    """The name behind the key in the file is what the rule knows."""
    answer = house.gateway.ask(
        CHAT, {"model": "auto", "messages": MESSAGES, "temperature": 0.9}, {"Authorization": "Bearer client-key-b"}
    )

    assert answer.headers["x-ascendd-rule"] == "b-only"
    assert answer.headers["x-ascendd-instance"] == "small"


class Stream:
    """A streamed chat whose pieces are read one by one."""

    def __init__(self, port: int, **fields: Any) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        body = {"model": "big", "messages": MESSAGES, "stream": True, **fields}
        self._connection.request("POST", CHAT, json.dumps(body), {"Authorization": "Bearer client-key-a"})
        self.response = self._connection.getresponse()

    def piece(self) -> str:
        """Return the data of the next event, "" at the end."""
        while line := self.response.readline():
            if line.startswith(b"data:"):
                return line[5:].strip().decode()
        return ""

    def close(self) -> None:
        """Leave."""
        self.response.close()
        self._connection.close()


def test_a_stream_comes_piece_by_piece(house: House) -> None:
    """A piece is here before the next one is made: nothing is collected on the way."""
    gate = threading.Semaphore(1)
    house.big.script = house.script(pieces=3, gate=gate)
    stream = Stream(house.gateway.port)
    seen = []
    for _ in range(3):
        seen.append(json.loads(stream.piece())["choices"][0]["delta"]["content"])
        gate.release()

    assert seen == ["piece 0", "piece 1", "piece 2"]
    assert stream.piece() == "[DONE]"
    assert stream.piece() == ""
    assert stream.response.headers["Content-Type"].startswith("text/event-stream")
    stream.close()


def test_a_client_that_leaves_ends_the_request_upstream(house: House, eventually: Callable[..., None]) -> None:
    """The instance sees its connection break while it still has pieces to send."""
    house.big.num_broken = 0
    gate = threading.Semaphore(1)
    house.big.script = house.script(pieces=1000, gate=gate)
    stream = Stream(house.gateway.port)
    stream.piece()
    stream.close()

    def has_broken() -> bool:
        gate.release()
        return house.big.num_broken == 1

    eventually(has_broken, "the end of the upstream request")


def test_a_stream_that_breaks_off_ends_with_an_error_event(house: House) -> None:
    """What was sent stays, no [DONE] follows, and the event says that the answer is not whole."""
    house.big.script = house.script(pieces=2, cut=True)
    stream = Stream(house.gateway.port)
    pieces = [stream.piece() for _ in range(4)]
    stream.close()

    assert "piece 1" in pieces[1]
    assert json.loads(pieces[2])["error"]["type"] == "service_unavailable_error"
    assert pieces[3] == ""


def test_a_stream_that_never_began_is_tried_elsewhere(house: House) -> None:
    """Headers alone are nothing that a client saw."""
    house.big.script = house.script(pieces=0, cut=True)
    stream = Stream(house.gateway.port, model="auto", temperature=0.9)

    assert stream.response.headers["X-Ascendd-Instance"] == "small"
    assert "piece 0" in stream.piece()
    stream.close()


def test_an_instance_that_is_not_ready_gets_nothing(house: House, eventually: Callable[..., None]) -> None:
    """The probe takes it out, /readyz says degraded, and it comes back by itself."""
    house.big.ready_status = 503
    eventually(lambda: house.gateway.ask("/readyz").json == {"status": "degraded"}, "degraded")
    house.big.bodies.clear()
    named, chosen = house.chat(model="big"), house.chat(temperature=0.9)
    house.big.ready_status = 200
    eventually(lambda: house.gateway.ask("/readyz").json == {"status": "ready"}, "ready again")

    assert named.status == 503
    assert named.json["error"]["code"] == "ASD-W01"
    assert "retry-after" in named.headers
    assert chosen.headers["x-ascendd-instance"] == "small"
    assert house.big.bodies == []


def test_a_client_that_leaves_takes_no_instance_out(
    scripted: Callable[[str], Any], start_gateway: Callable[..., Process], eventually: Callable[..., None]
) -> None:
    """Whenever a client closes its connection, also as a piece is written to it, the instance stays up for others."""
    lone = scripted("lone")
    gateway = start_gateway({"instances": [{"name": "lone", "url": lone.url}]})
    body = json.dumps({"model": "lone", "messages": MESSAGES, "stream": True}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: gateway\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for number in range(60):
        gate = threading.Semaphore(0)
        lone.play(pieces=4, gate=gate)
        seen = len(lone.bodies)
        with socket.create_connection(("127.0.0.1", gateway.port), timeout=120) as client:
            client.sendall(head + body)
            eventually(lambda seen=seen: len(lone.bodies) > seen, "the request at the instance")
            for _ in range(number % 4):
                gate.release()
                client.recv(65536)
            # The rest comes in while the connection closes: the gateway writes to what it has not yet seen close.
            gate.release(4)
        lone.play()
        assert gateway.ask(CHAT, {"model": "lone", "messages": MESSAGES}).status == 200

    assert gateway.events("gateway.attempt_failed") == []
    assert gateway.events("gateway.instance_down") == []
    assert gateway.stop() == 0


def test_one_slow_answer_takes_no_instance_out(
    scripted: Callable[[str], Any], start_gateway: Callable[..., Process], eventually: Callable[..., None]
) -> None:
    """A busy instance may be late once; only `probe.fall` probes in a row without an answer take it out."""
    lone = scripted("lone")
    gateway = start_gateway({
        "instances": [{"name": "lone", "url": lone.url}],
        "probe": {"interval_s": 0.05, "timeout_s": 0.5, "fall": 4},
    })  # fmt: skip
    eventually(lambda: gateway.ask("/readyz").status == 200, "the instance up")
    lone.ready_gate.clear()
    seen = lone.num_asked

    # While the third of these probes waits, the first two have been given up.
    eventually(lambda: lone.num_asked >= seen + 3, "three probes")
    while_late = gateway.ask(CHAT, {"model": "lone", "messages": MESSAGES})
    eventually(lambda: gateway.ask("/readyz").status == 503, "the instance out")
    (down,) = gateway.events("gateway.instance_down")
    lone.ready_gate.set()
    eventually(lambda: gateway.ask("/readyz").status == 200, "the instance up again")

    assert (while_late.status, while_late.json["by"]) == (200, "lone")
    assert down["reason"] == "/readyz has not answered within 0.5 s, 4 times in a row"
    assert gateway.stop() == 0


def test_rules_are_counted_dry_runs_too(
    house: House, start_gateway: Callable[..., Process], eventually: Callable[..., None]
) -> None:
    """The page is on a listener of its own; a rule that never matched is there with 0."""
    gateway = start_gateway(house.config)
    eventually(lambda: gateway.ask("/readyz").json == {"status": "ready"}, "both instances up")
    body, headers = (
        {"model": "auto", "messages": MESSAGES, "temperature": 0.9},
        {"Authorization": "Bearer client-key-a"},
    )
    for _ in range(3):
        assert gateway.ask(CHAT, body, headers).status == 200
    name = 'ascendd_gateway_rule_matches_total{{mode="{}",rule="{}"}}'

    eventually(lambda: gateway.metrics().get(name.format("live", "creative")) == 3, "three matches")
    page = gateway.metrics()
    assert page[name.format("dry_run", "watched")] == 3
    assert page[name.format("live", "watched")] == page[name.format("live", "short")] == 0
    assert page['ascendd_gateway_instance_up{target="big"}'] == 1
    assert page['ascendd_gateway_open_requests{target="big"}'] == 0
    assert gateway.ask("/metrics").status == 404


def test_models_are_listed_with_auto(house: House) -> None:
    """Clients that ask for a list find the name by which the gateway chooses."""
    listed = house.gateway.ask("/v1/models", headers={"Authorization": "Bearer client-key-a"}).json

    assert [card["id"] for card in listed["data"]] == ["auto", "big", "small"]


def test_a_reload_changes_rules_and_a_bad_file_changes_nothing(house: House, eventually: Callable[..., None]) -> None:
    """SIGHUP with a fault in the file is an error in the log; with a good file the next request meets the new rules."""
    good = {**house.config, "rules": [{"name": "all", "to": "small"}]}
    house.path.write_text("instances: []")
    house.gateway.popen.send_signal(signal.SIGHUP)
    eventually(lambda: house.gateway.events("gateway.reload_refused"), "the refusal")
    kept = house.chat(temperature=0.9)
    house.path.write_text(yaml.safe_dump(good))
    house.gateway.popen.send_signal(signal.SIGHUP)
    eventually(lambda: house.gateway.events("gateway.reloaded"), "the reload")
    changed = house.chat(temperature=0.9)
    house.path.write_text(yaml.safe_dump(house.config))
    house.gateway.popen.send_signal(signal.SIGHUP)
    eventually(lambda: len(house.gateway.events("gateway.reloaded")) == 2, "the way back")

    assert kept.headers["x-ascendd-rule"] == "creative"
    assert changed.headers["x-ascendd-rule"] == "all"
    assert "$.instances" in house.gateway.events("gateway.reload_refused")[0]["reason"]


def test_a_port_that_is_taken_is_exit_71(start: Callable[..., Process], house: House, tmp_path: Path) -> None:
    """Exit status and message are those of every other listener."""
    config = {**house.config, "listen": {"port": house.gateway.port}}
    (tmp_path / "gateway.yaml").write_text(yaml.safe_dump(config))
    process = start("gateway", "--config", str(tmp_path / "gateway.yaml"))

    assert process.popen.wait(timeout=120) == 71
    assert "ASD-H02" in process.log_path.read_text()
