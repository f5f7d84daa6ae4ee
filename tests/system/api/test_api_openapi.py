"""The served OpenAPI document is about the routes there are, and what comes back is what it says."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.system

JUNK: list[Any] = [
    None, True, 0, -1, 2**63, 1e308, "", "x", "\u0000", [], [None], [[1]], {}, {"a": 1}, "tiny", ["a", "b"], 3, 0.5,
    {"type": "json_schema", "json_schema": {"schema": {"type": "no"}}}, {"type": "text"}, [{"role": "user", "content": "hi"}],
    [{"role": "tool"}], [{"type": "function", "function": {"name": "f"}}], {"include_usage": True}, "required", "auto",
]  # fmt: skip


@pytest.fixture(scope="module")
def api(shared_api, script):
    # The test of another file may have left its own script.
    shared_api.engine.script = lambda _: script(shared_api.ids("hello world "))
    return shared_api


@pytest.fixture(scope="module")
def document(api) -> dict[str, Any]:
    answer = api.request("GET", "/openapi.json")
    assert answer.status == 200
    found: dict[str, Any] = answer.json
    return found


def test_document_has_every_route(document) -> None:
    """Every route that the server registers is described, and no other."""
    source = (Path(__file__).resolve().parents[3] / "ascendd" / "api" / "server.py").read_text(encoding="utf-8")
    registered = {
        (line.split("add_")[1].split("(")[0], line.split('"')[1].replace("{model:.+}", "{model}"))
        for line in source.splitlines()
        if "app.router.add_" in line
    }

    assert registered == {(method, path) for path, methods in document["paths"].items() for method in methods}


def test_references_lead_somewhere(document) -> None:
    """Each reference of the document names a schema that it has."""
    schemas = document["components"]["schemas"]
    text = json.dumps(document)
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}

    assert names <= schemas.keys()
    assert {"ChatRequest", "CompletionRequest", "Error"} <= names


def malformed(document: dict[str, Any], draw: random.Random) -> tuple[str, bytes]:
    """A path and a body: fields of its schema with values that mostly do not fit, or no JSON at all."""
    path, kind = draw.choice([
        ("/v1/chat/completions", "ChatRequest"), ("/v1/completions", "CompletionRequest"), ("/tokenize", "TokenizeRequest"),
        ("/detokenize", "DetokenizeRequest"), ("/v1/load_lora_adapter", "LoadAdapterRequest"), ("/v1/embeddings", "ChatRequest"),
    ])  # fmt: skip
    fields = sorted(document["components"]["schemas"][kind]["properties"])
    body: dict[str, Any] = {"model": "tiny", "max_tokens": 1}
    body |= {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"prompt": "hi"}
    for name in draw.sample(fields, min(len(fields), draw.randint(0, 3))):
        body[name] = draw.choice(JUNK)
    data = json.dumps(body).encode()
    if draw.random() < 0.2:
        place = draw.randrange(len(data))
        data = data[:place] + bytes([draw.randrange(256)]) + data[place + draw.randint(0, 3) :]
    return path, data


def fuzz(api, document, num: int, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(num):
        path, body = malformed(document, draw)
        answer = api.request("POST", path, body)

        assert answer.status < 500, (path, body, answer.body)
        assert str(answer.status) in document["paths"][path]["post"]["responses"], (path, body, answer.status)


def test_malformed_bodies_are_answered_as_documented(api, document) -> None:
    """Of 100 bodies with junk in their fields none is a 5xx or a status that the document does not have."""
    fuzz(api, document, 100, 1)

    assert api.alive()
    assert "Traceback" not in api.log


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_thousand_malformed_bodies(start_api, script, document) -> None:
    """10,000 malformed bodies: no 5xx, and resident memory that stays flat once the first thousand have warmed it up."""
    api = start_api()
    api.attach_engine(lambda _: script(api.ids("hello ")))

    def resident() -> int:
        lines = Path(f"/proc/{api.process.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])

    fuzz(api, document, 1000, 2)
    before = resident()
    fuzz(api, document, 9000, 3)

    assert resident() < before + 16 * 1024
    assert api.alive()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_schemathesis_finds_nothing(start_api, script, document, tmp_path) -> None:
    """What schemathesis makes of the served document: no 5xx, no status, content type or body that it does not have."""
    api = start_api()
    api.attach_engine(lambda _: script(api.ids("hello ")))
    python = tmp_path / "v" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "v")], check=True, timeout=120)
    subprocess.run([str(python), "-m", "pip", "install", "-qq", "schemathesis==4.32.5"], check=True, timeout=600)
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    done = subprocess.run(
        [
            str(python.parent / "st"), "run", f"{api.url}/openapi.json", "--checks", checks, "--seed", "1",
            # An endless stream has no end to judge.
            "--exclude-path", "/status/events",
            "--phases", "examples,coverage,fuzzing", "--max-examples", "50", "--request-timeout", "30", "--no-color",
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    counted = re.search(r"(\d+) generated, (\d+) passed", done.stdout)

    assert done.returncode == 0, done.stdout
    # It does not count the document's own path.
    paths = {path: methods for path, methods in document["paths"].items() if path != "/openapi.json"}
    num_operations = sum(map(len, paths.values()))
    assert f"Selected: {num_operations - 1}/{num_operations}" in done.stdout, done.stdout
    assert counted is not None
    assert int(counted[1]) == int(counted[2]) >= 1000, counted[0]
    assert api.alive()
    assert "Traceback" not in api.log
