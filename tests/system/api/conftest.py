"""The real API process, its supervisor played by the test, and an engine that speaks the data link from a script."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from ascendd.config.load import convert
from ascendd.errors import AscenddError, PeerClosed
from ascendd.ipc.channel import BlockingChannel, socket_pair
from ascendd.ipc.frames import encode_frame
from ascendd.ipc.messages import (
    NO_TOKEN,
    AbortSequences,
    AddSequence,
    AttachPeer,
    ChildFault,
    Configure,
    ControlMessage,
    DataMessage,
    EngineHello,
    EngineState,
    Fault,
    FinishReason,
    Hello,
    Probe,
    ProbeDone,
    Ready,
    Role,
    SequenceFailed,
    Stats,
    StepOutput,
    TokenLogprobs,
)

MODEL = "tiny"
CONTEXT = 128
SPECIALS = ("<s>", "<|end|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level_tokenizer(*, bos: bool = False) -> Tokenizer:
    """A byte-level BPE of about 300 ids; with `bos` it puts <s> before every text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(SPECIALS),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["hello world the quick brown fox jumps over the lazy dog"] * 4, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)]
        )
    return tokenizer


@dataclass
class Script:
    """What the engine makes of one sequence: `tokens` in turn, from the start again while `repeat`."""

    tokens: list[int]
    repeat: bool = True
    step_s: float = 0.0
    # Tokens before the first of which the named thing happens.
    fail_at: int | None = None
    die_at: int | None = None
    fault: AscenddError | None = None
    num_cached: int = 0
    # Log probability of output token number 0, 1, ... and of prompt token number 1, 2, ...
    logprob: Callable[[int], float] = lambda number: -0.25 * number
    # Whether the engine waits for `release` before the first token.
    held: bool = False


@dataclass
class _Running:
    add: AddSequence
    script: Script
    num_made: int = 0


class FakeEngine:
    """Stands at the far end of the data link in a thread of its own; one token a step for each sequence."""

    def __init__(self, sock: socket.socket, hello: EngineHello, script: Callable[[AddSequence], Script]) -> None:
        self.script = script
        self.hello = hello
        self.added: list[AddSequence] = []
        self.aborted: list[int] = []
        self.changed = threading.Condition()
        self.release = threading.Event()
        self.answers_probes = True
        self.probe_fault: Fault | None = None
        self.num_probes = 0
        self._channel: BlockingChannel[DataMessage] = BlockingChannel(sock, DataMessage)
        self._running: dict[int, _Running] = {}
        self._dying = False
        self._channel.send(hello)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def running_ids(self) -> set[int]:
        """Sequences in work."""
        return set(self._running)

    def die(self) -> None:
        """Close the link as a killed process would."""
        self._dying = True
        self.release.set()
        self._thread.join(10)

    def wait(self, condition: Callable[[], bool], timeout_s: float = 90.0) -> None:
        """Return once `condition` holds; fails the test after `timeout_s`."""
        with self.changed:
            assert self.changed.wait_for(condition, timeout_s), "the engine did not see what was expected"

    def _run(self) -> None:
        try:
            while not self._dying:
                pause = min((r.script.step_s for r in self._running.values()), default=0.05)
                message = self._channel.recv(pause)
                while message is not None:
                    self._take(message)
                    message = self._channel.recv(0)
                self._step()
        except PeerClosed:
            pass
        finally:
            self._channel.close()

    def _take(self, message: DataMessage) -> None:
        with self.changed:
            if isinstance(message, AddSequence):
                self.added.append(message)
                self._running[message.seq_id] = _Running(message, self.script(message))
            elif isinstance(message, Probe):
                if self.answers_probes:
                    self._channel.send(ProbeDone(message.ticket, self.probe_fault))
                self.num_probes += 1
            elif isinstance(message, AbortSequences):
                self.aborted += message.seq_ids
                for seq_id in message.seq_ids:
                    self._running.pop(seq_id, None)
            self.changed.notify_all()

    def _step(self) -> None:
        out = StepOutput([], [], [], [], [], {})
        for seq_id, run in list(self._running.items()):
            script = run.script
            if script.held and not self.release.is_set():
                continue
            if script.die_at == run.num_made:
                self._flush(out)
                self._dying = True
                return
            if script.fail_at == run.num_made:
                error = script.fault or AscenddError("scripted")
                self._channel.send(SequenceFailed(seq_id, Fault.from_error(error)))
                self._forget(seq_id)
                continue
            params = run.add.params
            if params.prompt_logprobs is not None and run.num_made == 0:
                out.prompt_logprobs[seq_id] = [
                    self._scores(script, number, token_id, params.prompt_logprobs)
                    for number, token_id in enumerate(run.add.prompt_token_ids)
                ][1:]
            token_id = script.tokens[run.num_made % len(script.tokens)] if params.max_tokens else NO_TOKEN
            out.logprobs.append(
                None if params.logprobs is None else self._scores(script, run.num_made, token_id, params.logprobs)
            )
            run.num_made += 1
            finish = self._finish(run, token_id)
            out.seq_ids.append(seq_id)
            out.token_ids.append(token_id)
            out.finish.append(int(finish))
            out.num_cached.append(script.num_cached if run.num_made == 1 else 0)
            if finish:
                self._forget(seq_id)
        self._flush(out)

    def _scores(self, script: Script, number: int, token_id: int, num_top: int) -> TokenLogprobs:
        """The token is the second best; the others have ids and logprobs that follow."""
        logprob = script.logprob(number)
        top = [(token_id + offset) % self.hello.vocab_size for offset in (1, 0, *range(2, 20))][:num_top]
        return TokenLogprobs(logprob, 2, top, [logprob + 0.5 - place / 2 for place in range(num_top)])

    def _finish(self, run: _Running, token_id: int) -> FinishReason:
        params = run.add.params
        if run.num_made > params.min_tokens:
            if token_id in params.stop_token_ids or (token_id in self.hello.eos_token_ids and not params.ignore_eos):
                return FinishReason.STOP
            if not run.script.repeat and run.num_made == len(run.script.tokens):
                return FinishReason.STOP
        return FinishReason.LENGTH if run.num_made >= params.max_tokens else FinishReason.RUNNING

    def _flush(self, out: StepOutput) -> None:
        if out.seq_ids:
            self._channel.send(out)

    def _forget(self, seq_id: int) -> None:
        with self.changed:
            self._running.pop(seq_id, None)
            self.changed.notify_all()


@dataclass
class Answer:
    """One HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON, with the literals that are not JSON refused."""
        return json.loads(self.body, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))

    @property
    def error(self) -> dict[str, Any]:
        """The error object."""
        error: dict[str, Any] = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error

    @property
    def events(self) -> list[Any]:
        """The events of a stream; `[DONE]` stays text."""
        lines = self.body.decode().split("\n\n")
        data = [line.removeprefix("data: ") for line in lines if line]
        return [item if item == "[DONE]" else json.loads(item) for item in data]


@dataclass
class ApiUnderTest:
    """The API process with its ends of all links."""

    process: subprocess.Popen[bytes]
    control: BlockingChannel[ControlMessage]
    control_socket: socket.socket
    host: str
    port: int
    log_path: Path
    tokenizer: Tokenizer
    messages: list[ControlMessage] = field(default_factory=list)
    arrived: threading.Condition = field(default_factory=threading.Condition)
    engine: FakeEngine | None = None
    listener_done: bool = False

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://{self.host}:{self.port}"

    @property
    def log(self) -> str:
        """All that the process wrote."""
        return self.log_path.read_text(encoding="utf-8")

    def listen(self) -> None:
        """Collect control messages until the process ends."""
        try:
            while True:
                message = self.control.recv(None)
                assert message is not None
                with self.arrived:
                    self.messages.append(message)
                    self.arrived.notify_all()
        except PeerClosed:
            with self.arrived:
                self.listener_done = True
                self.arrived.notify_all()

    def wait_for(
        self, kind: type[Any], timeout_s: float = 90.0, condition: Callable[[Any], bool] = lambda _: True
    ) -> Any:
        """Return the first control message of `kind` for which `condition` holds."""

        def find() -> Any:
            return next((m for m in self.messages if isinstance(m, kind) and condition(m)), None)

        with self.arrived:
            self.arrived.wait_for(lambda: find() is not None or self.process.poll() is not None, timeout_s)
        found = find()
        assert found is not None, f"no {kind.__name__}; the log says:\n{self.log}"
        return found

    def send(self, message: Any) -> None:
        """Send a control message."""
        self.control.send(message)

    def attach_engine(self, script: Callable[[AddSequence], Script], *, ready: bool = True, **hello: Any) -> FakeEngine:
        """Connect a fresh engine and say that it is ready."""
        ours, theirs = socket_pair()
        facts = {
            "model_name": MODEL, "max_model_len": CONTEXT, "vocab_size": 290, "eos_token_ids": (1,), "num_blocks": 64,
            "block_size": 16, "max_num_seqs": 16, **hello,
        }  # fmt: skip
        frame = encode_frame(AttachPeer(Role.ENGINE, 1))
        socket.send_fds(self.control_socket, [frame], [theirs.fileno()])
        theirs.close()
        self.engine = FakeEngine(ours, EngineHello(**facts), script)
        self.send(EngineState(ready=ready, text="ready" if ready else "loading 42 %", retry_after_s=7))
        if ready:
            self.wait_ready()
        return self.engine

    def wait_ready(self) -> None:
        """Return once /readyz says 200."""
        deadline = time.monotonic() + 90
        while self.request("GET", "/readyz").status != 200:
            assert time.monotonic() < deadline, self.log
            time.sleep(0.01)

    def ids(self, text: str) -> list[int]:
        """Token ids of `text`, with no BOS."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def pieces(self, *texts: str) -> list[list[int]]:
        """Token ids of each of `texts`."""
        return [self.ids(text) for text in texts]

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, timeout_s: float = 90.0
    ) -> Answer:
        """Send one request on a connection of its own and read the whole answer."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        try:
            data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def complete(self, headers: dict[str, str] | None = None, **body: Any) -> Answer:
        """POST /v1/completions."""
        return self.request("POST", "/v1/completions", {"model": MODEL, "prompt": "hello", **body}, headers)

    def chat(self, headers: dict[str, str] | None = None, **body: Any) -> Answer:
        """POST /v1/chat/completions."""
        messages = [{"role": "user", "content": "hi"}]
        return self.request("POST", "/v1/chat/completions", {"model": MODEL, "messages": messages, **body}, headers)

    def open_stream(self, path: str, body: dict[str, Any], receive_buffer: int | None = None) -> socket.socket:
        """Send a streaming request and return the socket, with nothing read."""
        sock = socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.settimeout(30)
        sock.connect((self.host, self.port))
        data = json.dumps({"model": MODEL, "stream": True, **body}).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        sock.sendall(head.encode() + data)
        return sock

    def alive(self) -> bool:
        """Whether a plain request is served."""
        assert self.engine is not None
        kept, self.engine.script = self.engine.script, lambda _: Script(self.ids("hello"))
        answer = self.complete(max_tokens=4)
        self.engine.script = kept
        return answer.status == 200 and answer.json["usage"]["completion_tokens"] == 4

    def metric(self, name: str, labels: tuple[str, ...] = ()) -> float:
        """The newest value of a counter in the Stats sent from now on."""
        with self.arrived:
            num_seen = len(self.messages)
            self.arrived.wait_for(lambda: any(isinstance(m, Stats) for m in self.messages[num_seen:]), 10)
            stats = [m for m in self.messages if isinstance(m, Stats)][-1]
        found = [s for s in stats.samples if s.name == name and s.labels == labels]
        if not found:
            return 0.0
        return float(sum(found[0].buckets)) if found[0].buckets else found[0].value

    def stop(self) -> None:
        """End the process if it still runs."""
        self.process.kill()
        self.process.wait(10)
        with self.arrived:
            self.arrived.wait_for(lambda: self.listener_done, 10)
        self.control.close()
        if self.engine is not None:
            self.engine.die()


StartApi = Callable[..., ApiUnderTest]


@pytest.fixture(scope="session")
def start_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartApi]:
    """Return what starts an API process; sections of the configuration are keywords, all processes end with the session."""
    started: list[ApiUnderTest] = []

    def start(
        *,
        bos: bool = False,
        tokenizer_config: dict[str, Any] | None = None,
        tokenizer: Tokenizer | None = None,
        wait: bool = True,
        host: str = "127.0.0.1",
        **sections: dict[str, Any],
    ) -> ApiUnderTest:
        folder = tmp_path_factory.mktemp("api")
        tokenizer = tokenizer or byte_level_tokenizer(bos=bos)
        tokenizer.save(str(folder / "tokenizer.json"))
        config_of_tokenizer = {"bos_token": "<s>", "eos_token": "<|end|>", "chat_template": CHAT_TEMPLATE}
        config_of_tokenizer.update(tokenizer_config or {})
        (folder / "tokenizer_config.json").write_text(json.dumps(config_of_tokenizer), encoding="utf-8")
        config = convert({"model": {"path": str(folder), "name": MODEL}, **sections})
        listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        ours, theirs = socket.socketpair()
        log_path = folder / "log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "ascendd",
                    "_api",
                    "--control-fd",
                    str(theirs.fileno()),
                    "--listen-fd",
                    str(listener.fileno()),
                ],
                pass_fds=(theirs.fileno(), listener.fileno()),
                stderr=log,
                stdout=log,
                env={**os.environ, "PYTHONASYNCIODEBUG": "0", "PYTHONWARNINGS": "error::RuntimeWarning"},
            )
        theirs.close()
        reachable, port = ("::1" if ":" in host else "127.0.0.1"), listener.getsockname()[1]
        listener.close()
        control: BlockingChannel[ControlMessage] = BlockingChannel(ours, ControlMessage)
        api = ApiUnderTest(process, control, ours, reachable, port, log_path, tokenizer)
        started.append(api)
        threading.Thread(target=api.listen, daemon=True).start()
        api.wait_for(Hello)
        api.send(Configure(msgspec.json.encode(config)))
        api.wait_for(Ready if wait else ChildFault)
        return api

    yield start
    for api in started:
        api.stop()


@pytest.fixture(scope="session")
def shared_api(start_api: StartApi) -> ApiUnderTest:
    """One process with a ready engine for all tests that leave it as it was."""
    api = start_api()
    api.attach_engine(lambda _: Script(api.ids("hello world ")))
    return api


@pytest.fixture
def api(shared_api: ApiUnderTest) -> Iterator[ApiUnderTest]:
    """The shared process; its engine says `hello world ` for ever, and must be idle afterwards."""
    engine = shared_api.engine
    assert engine is not None
    engine.script = lambda _: Script(shared_api.ids("hello world "))
    engine.added.clear()
    engine.aborted.clear()
    engine.release.clear()
    yield shared_api
    engine.wait(lambda: not engine.running_ids)
    assert shared_api.process.poll() is None, shared_api.log
    assert "Traceback" not in shared_api.log


@pytest.fixture(scope="session")
def script() -> type[Script]:
    """What an engine's script is made of."""
    return Script
