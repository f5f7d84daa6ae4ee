"""Keys over HTTP: scopes, limits, and the client's own time limit; tools and reasoning as a client sees them."""

from __future__ import annotations

import http.client
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ascendd.config.credentials import Credential, digest_of

pytestmark = pytest.mark.system

KEYS = {
    "plain": Credential("plain", digest_of("plain"), frozenset({"infer"})),
    "narrow": Credential("narrow", digest_of("narrow"), frozenset({"infer"}), max_concurrency=1),
    "poor": Credential("poor", digest_of("poor"), frozenset({"infer"}), tokens_per_minute=10),
    "scraper": Credential("scraper", digest_of("scraper"), frozenset({"metrics"})),
    "admin": Credential("ops", digest_of("admin"), frozenset({"admin"})),
}
TEMPLATE = "{% if tools %}<tool_call>{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}<think>"


@pytest.fixture(scope="module")
def api(start_api, script, tmp_path_factory):
    """A process with keys of every scope, a template with tools and reasoning, and a scrape page beside it."""
    path: Path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text("".join(f"{item.line()}\n" for item in KEYS.values()), encoding="utf-8")
    path.chmod(0o600)
    page = ThreadingHTTPServer(("127.0.0.1", 0), _ScrapePage)
    threading.Thread(target=page.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    api = start_api(
        listen={"api_key_file": str(path)},
        metrics={"port": page.server_address[1]},
        tokenizer_config={"chat_template": TEMPLATE},
    )
    api.attach_engine(lambda _: script(api.ids("hello ")))
    yield api
    page.shutdown()
    page.server_close()


class _ScrapePage(BaseHTTPRequestHandler):
    """What the metrics process would answer: a page that names the form it was asked for."""

    def log_message(self, *_args) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        data = f"# asked for {self.headers.get('Accept')}\nascendd_instance_ready 1.0\n".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_scopes(api):
    """A key opens what its scopes say; the log names it, and holds no key."""
    loading = {"lora_name": "x", "lora_path": "y"}

    assert api.complete(bearer("plain")).status == 200
    assert api.request("POST", "/v1/load_lora_adapter", loading, bearer("plain")).status == 403
    assert api.request("POST", "/v1/load_lora_adapter", loading, bearer("admin")).error["code"] != "insufficient_scope"
    assert api.complete(bearer("admin")).error["code"] == "insufficient_scope"
    assert '"key":"plain"' in api.log.replace('": "', '":"') or "key=plain" in api.log


def test_metrics_are_for_keys_of_that_scope(api, shared_api):
    """/metrics on the API's address needs the scope metrics, which opens nothing else; without a key file it is 403."""
    page = api.request("GET", "/metrics", None, {**bearer("scraper"), "Accept": "text/plain"})
    others = {key: api.request("GET", "/metrics", None, bearer(key)).status for key in ("plain", "admin", "unknown")}
    elsewhere = {
        path: api.request("GET", path, None, bearer("scraper")).status
        for path in ("/v1/models", "/openapi.json", "/nothing", "/metrics/")
    }
    keyless = shared_api.request("GET", "/metrics")

    assert page.status == 200
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert page.body == b"# asked for text/plain\nascendd_instance_ready 1.0\n"
    assert others == {"plain": 403, "admin": 403, "unknown": 401}
    assert set(elsewhere.values()) == {403}, elsewhere
    assert keyless.status == 403
    assert "loopback" in keyless.error["message"]


def test_every_route_is_denied_without_a_key(api):
    """Of all routes, only the three probes and the status page's markup, which tells nothing, answer without a key."""
    source = (Path(__file__).resolve().parents[3] / "ascendd" / "api" / "server.py").read_text(encoding="utf-8")
    routes = re.findall(r'app\.router\.add_(get|post)\("([^"]+)"', source)
    asked = {path: path.replace("{name}", "page.css").partition("{")[0] for _, path in routes}
    answers = {path: api.request(method.upper(), asked[path]) for method, path in routes}
    opened = {path for path, answer in answers.items() if answer.status != 401}

    assert len(routes) >= 17
    assert opened == {"/livez", "/readyz", "/health", "/status", "/status/{name}"}
    for path in ("/status", "/status/{name}"):
        assert answers[path].status == 200
        assert not re.search(rb"tiny|127\.0\.0\.1", answers[path].body), f"{path} tells the model or the address"


@pytest.mark.parametrize(
    "path", ["/status/events", "/status/x", "/status/page.css/", "/status/../v1/models", "/status/a.b"]
)
def test_only_the_page_s_own_files_are_open(api, path):
    """Beside page and assets nothing under /status is open: figures and unknown names need a key."""
    assert api.request("GET", path).status == 401


def test_figures_need_the_scope_admin(api):
    """The status page's figures are refused to keys of any other scope."""
    refused = {key: api.request("GET", "/status/events", None, bearer(key)).status for key in ("plain", "scraper", "x")}

    assert refused == {"plain": 403, "scraper": 403, "x": 401}


def test_one_request_at_a_time(api, script):
    """A second request of a key with max_concurrency 1 is 429 with Retry-After; other keys are served meanwhile."""
    kept, api.engine.script = api.engine.script, lambda _: script(api.ids("hello "), step_s=0.05)
    connection = http.client.HTTPConnection(api.host, api.port, timeout=120)
    body = json.dumps({"model": "tiny", "prompt": "hi", "stream": True, "max_tokens": 100})
    connection.request("POST", "/v1/completions", body, bearer("narrow"))
    first = connection.getresponse()
    second = api.complete(bearer("narrow"))
    other = api.complete(bearer("plain"), max_tokens=1)
    connection.close()
    api.engine.script = kept

    assert (first.status, second.status, other.status) == (200, 429, 200)
    assert second.headers["retry-after"] == "1"
    assert second.error["code"] == "rate_limit_exceeded"


def test_tokens_per_minute(api):
    """A key that has used its tokens of a minute is 429, and Retry-After says for how long."""
    first = api.complete(bearer("poor"), max_tokens=16)
    second = api.complete(bearer("poor"), max_tokens=1)

    assert (first.status, second.status) == (200, 429)
    assert 30 <= int(second.headers["retry-after"]) <= 120


@pytest.mark.parametrize("value", ["soon", "0", "-1", "inf", "1e3"])
def test_bad_time_limit_is_refused(api, value):
    """X-Request-Timeout that is no number of seconds is 400."""
    answer = api.complete({**bearer("plain"), "X-Request-Timeout": value})

    assert answer.status == 400
    assert answer.error["param"] == "X-Request-Timeout"


def test_client_s_own_time_limit(api, script):
    """A request that is not finished within X-Request-Timeout is 504, and its sequence is gone."""
    kept, api.engine.script = api.engine.script, lambda _: script(api.ids("hello "), held=True)
    answer = api.complete({**bearer("plain"), "X-Request-Timeout": "0.2"})
    api.engine.wait(lambda: not api.engine.running_ids)
    api.engine.script = kept

    assert answer.status == 504


def test_reasoning_and_a_call(api, script):
    """Reasoning, content and a call of one answer are told apart, whole and streamed."""
    text = 'why</think>\n\nWell. <tool_call>{"name": "sub", "arguments": {"a": 1}}</tool_call>'
    kept, api.engine.script = api.engine.script, lambda _: script(api.ids(text), repeat=False)
    tools = [{"type": "function", "function": {"name": "sub"}}]
    whole = api.chat(bearer("plain"), tools=tools).json["choices"][0]
    events = api.chat(bearer("plain"), tools=tools, stream=True).events
    api.engine.script = kept
    deltas = [event["choices"][0]["delta"] for event in events if event != "[DONE]"]
    call = whole["message"]["tool_calls"][0]

    assert whole["finish_reason"] == "tool_calls"
    assert whole["message"]["reasoning_content"] == "why"
    assert whole["message"]["content"] == "Well. "
    assert call["function"] == {"name": "sub", "arguments": '{"a": 1}'}
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "why"
    assert "".join(delta.get("content", "") for delta in deltas) == "Well. "
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls", [])]
    assert "".join(piece["function"]["arguments"] for piece in pieces) == '{"a": 1}'
    assert events[-2]["choices"][0]["finish_reason"] == "tool_calls"
