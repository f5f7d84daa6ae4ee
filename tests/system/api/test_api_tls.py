"""HTTPS on the API's own listener: certificates are exchanged while it serves, and the self-test goes the same way."""

from __future__ import annotations

import hashlib
import http.client
import json
import shutil
import socket
import ssl
from pathlib import Path

import msgspec
import pytest
from certificates import make_certificate

from ascendd.config.load import convert
from ascendd.ipc.messages import EngineState, Reconfigure, RunSelfTest, SelfTestDone

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Holds the pair that is served, and a second one."""
    path = tmp_path_factory.mktemp("tls")
    for name in ("first", "second"):
        make_certificate(path, name)
    put(path, "first")
    return path


@pytest.fixture(scope="module")
def sections(folder) -> dict:
    return {"listen": {"tls": {"cert_file": str(folder / "served.crt"), "key_file": str(folder / "served.key")}}}


@pytest.fixture(scope="module")
def api(start_api, script, sections):
    api = start_api(**sections)
    engine = api.attach_engine(lambda _: script(api.ids("hello ")), ready=False)
    api.send(RunSelfTest(1))
    assert api.wait_for(SelfTestDone).fault is None, api.log
    engine.wait(lambda: not engine.running_ids)
    api.send(EngineState(ready=True, text="serving"))
    return api


def put(folder: Path, name: str) -> None:
    for kind in ("crt", "key"):
        shutil.copy(folder / f"{name}.{kind}", folder / f"served.{kind}")


def context(folder: Path, name: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=folder / f"{name}.crt")


def served_digest(api, server_name: str | None = "localhost") -> bytes:
    """SHA-256 of the certificate that a new connection meets, with or without a name asked for."""
    blind = ssl.create_default_context()
    blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
    plain = socket.create_connection((api.host, api.port), timeout=120)
    with plain, blind.wrap_socket(plain, server_hostname=server_name) as sock:
        return hashlib.sha256(sock.getpeercert(binary_form=True) or b"").digest()


def digest(folder: Path, name: str) -> bytes:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert((folder / f"{name}.crt").read_text())).digest()


def reload(api, sections, event: str) -> None:
    """Have the process read its files anew and return once it said `event`."""
    num_before = api.log.count(event)
    config = convert({"model": {"path": str(api.log_path.parent), "name": "tiny"}, **sections})
    api.send(Reconfigure(msgspec.json.encode(config)))
    with api.arrived:
        assert api.arrived.wait_for(lambda: api.log.count(event) > num_before, 30), api.log


def post(connection: http.client.HTTPSConnection, **fields) -> http.client.HTTPResponse:
    body = {"model": "tiny", "prompt": "hi", "max_tokens": 4, "ignore_eos": True, **fields}
    connection.request("POST", "/v1/completions", json.dumps(body))
    return connection.getresponse()


def test_requests_over_tls(api, folder):
    """A client that trusts the certificate is served, whole and streamed; one that speaks plain HTTP is not."""
    connection = http.client.HTTPSConnection(api.host, api.port, timeout=120, context=context(folder, "first"))
    whole = json.loads(post(connection).read())
    stream = post(connection, stream=True).read()
    connection.close()
    plain = http.client.HTTPConnection(api.host, api.port, timeout=120)
    plain.request("GET", "/livez")

    assert whole["usage"]["completion_tokens"] == 4
    assert stream.endswith(b"data: [DONE]\n\n")
    with pytest.raises((http.client.HTTPException, OSError)):
        plain.getresponse()
    assert "Traceback" not in api.log
    assert '"api.certificate_loaded"' in api.log or "api.certificate_loaded" in api.log


def test_new_connections_meet_a_new_certificate(api, folder, sections, script):
    """After a reload new connections meet the new one, named or not, and a stream that runs goes to its end."""
    kept, api.engine.script = api.engine.script, lambda _: script(api.ids("hello "), held=True)
    running = http.client.HTTPSConnection(api.host, api.port, timeout=120, context=context(folder, "first"))
    body = {"model": "tiny", "prompt": "hi", "max_tokens": 30, "ignore_eos": True, "stream": True}
    running.request("POST", "/v1/completions", json.dumps(body))
    api.engine.wait(lambda: len(api.engine.running_ids) == 1)
    put(folder, "second")
    reload(api, sections, "api.certificate_loaded")
    met = {served_digest(api), served_digest(api, None)}
    api.engine.release.set()
    text = running.getresponse().read()
    running.close()
    api.engine.script = kept
    connection = http.client.HTTPSConnection("localhost", api.port, timeout=120, context=context(folder, "second"))
    answer = post(connection)
    connection.close()

    assert met == {digest(folder, "second")}
    assert text.endswith(b"data: [DONE]\n\n")
    assert text.count(b"hello") >= 10
    assert answer.status == 200


def test_a_broken_file_leaves_the_old_certificate(api, folder, sections):
    """A pair that does not belong together changes nothing, and the log names the file."""
    serving = served_digest(api)
    shutil.copy(folder / "first.key", folder / "served.key")
    shutil.copy(folder / "second.crt", folder / "served.crt")
    reload(api, sections, "api.certificate_not_reloaded")

    assert served_digest(api) == serving
    assert "served.key does not belong to the certificate" in api.log
