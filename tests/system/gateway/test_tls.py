"""HTTPS from end to end: a real instance, the gateway before it, and the verbs that are clients of both."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from certificates import let_expire, make_certificate

if TYPE_CHECKING:
    from .conftest import Process  # type: ignore[import-not-found]

pytestmark = pytest.mark.system


def verb(*args: str) -> subprocess.CompletedProcess[str]:
    """Run `ascendd ARGS` with an empty standard input, or with a question for `chat`."""
    command = [sys.executable, "-m", "ascendd", *args]
    return subprocess.run(command, input="hello", capture_output=True, text=True, timeout=90, check=False)


def test_tls_from_client_to_engine(
    start: Callable[..., Process],
    start_instance: Callable[..., Process],
    start_gateway: Callable[..., Process],
    eventually: Callable[..., None],
    tmp_path: Path,
) -> None:
    """
    Instance and gateway serve HTTPS; chat, bench and status work with them, and a reload brings a new certificate.

    One test, because it is one story and loading models is what costs.
    """
    cert, key = make_certificate(tmp_path, "served")
    renewed, renewed_key = make_certificate(tmp_path, "renewed")
    instance = start_instance("tiny-tls", 1, "--ssl-certfile", str(cert), "--ssl-keyfile", str(key))
    eventually(lambda: instance.events("api.self_test_passed"), "a passed self-test")
    url = f"https://127.0.0.1:{instance.events('api.listening')[0]['port']}"
    gateway = start_gateway({
        "listen": {"port": 0, "tls": {"cert_file": str(cert), "key_file": str(key)}},
        "instances": [
            {"name": "tiny-tls", "url": url, "ca_file": str(cert)},
            {"name": "stranger", "url": url, "models": ["other"], "ca_file": str(renewed)},
        ],
    })  # fmt: skip
    front = f"https://127.0.0.1:{gateway.port}"
    eventually(lambda: gateway.events("gateway.instance_up"), "the instance up")

    chat = verb("chat", "--url", url, "--ca-file", str(cert), "--max-tokens", "4")
    doubtful = verb("chat", "--url", url, "--max-tokens", "4")
    bench = verb("bench", front, "--ca-file", str(cert), "--requests", "4", "--lengths", "8x4", "--ignore-eos",
                 "--model", "tiny-tls", "--json")  # fmt: skip
    status = json.loads(verb("status", "tiny-tls", "--json").stdout)[0]
    assert chat.returncode == 0, chat.stderr
    assert doubtful.returncode == 70
    assert "certificate verify failed" in doubtful.stderr
    report = json.loads(bench.stdout)
    assert report["requests"]["failed"] == 0, (report, gateway.log_path.read_text())
    assert (status["address"], status["phase"]) == (url, "serving")
    # The instance that a wrong authority vouches for is down, and the log says why.
    assert "Certificate" in gateway.events("gateway.instance_down")[0]["reason"]

    shutil.copy(renewed, cert)
    shutil.copy(renewed_key, key)
    assert verb("reload", "tiny-tls").returncode == 0
    eventually(lambda: len(instance.events("api.certificate_loaded")) == 2, "the renewed certificate")
    assert ssl.get_server_certificate(("127.0.0.1", int(url.rsplit(":", 1)[1]))).strip() == renewed.read_text().strip()
    assert verb("chat", "--url", url, "--ca-file", str(renewed), "--max-tokens", "4").returncode == 0

    let_expire(cert)
    refused = verb("reload", "tiny-tls")
    assert refused.returncode == 78
    assert "expired at 2020-02-01" in refused.stderr
    assert verb("chat", "--url", url, "--ca-file", str(renewed), "--max-tokens", "4").returncode == 0
    assert gateway.stop() == 0
    assert instance.stop() == 0
    assert "Traceback" not in instance.log_path.read_text()
