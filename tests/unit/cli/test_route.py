"""`ascendd route --explain`: what the gateway's rules make of a request, without a gateway."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from ascendd.cli.app import main

GATEWAY = """
instances:
  - {name: qwen2-7b, url: "http://h:1"}
  - {name: phi-3-mini, url: "http://h:2"}
rules:
  - {name: audio, when: {modality: audio}, refuse: audio is not served here yet}
  - {name: trial, when: {stream: true}, to: phi-3-mini, dry_run: true}
  - {name: creative, when: {temperature: ">= 0.8"}, to: [qwen2-7b, phi-3-mini]}
  - {name: short, when: {max_tokens: "< 128"}, to: phi-3-mini}
"""
MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture
def explain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return exit status and output for a body and flags."""
    (tmp_path / "gateway.yaml").write_text(GATEWAY)

    def run(body: object, *flags: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(body if isinstance(body, str) else json.dumps(body)))
        status = main(["route", "--explain", "-", "--config", str(tmp_path / "gateway.yaml"), *flags])
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    return run


def test_the_account_s_example(explain: Any) -> None:
    """Creative requests go to the large model, short ones to the small one, with each condition beside its value."""
    creative = explain({"model": "auto", "messages": MESSAGES, "temperature": 0.9, "stream": True})
    short = explain({"model": "auto", "messages": MESSAGES, "temperature": 0.2, "max_tokens": 50})

    assert creative[0] == short[0] == 0
    assert (
        "rule creative: matches, chosen\n  yes model auto   (request: auto)\n  yes temperature >= 0.8   (request: 0.9)"
        in creative[1]
    )
    assert "rule trial: matches, dry run" in creative[1]
    assert "goes to qwen2-7b at qwen2-7b; then phi-3-mini at phi-3-mini" in creative[1]
    assert (
        "rule creative: does not match\n  yes model auto   (request: auto)\n  no  temperature >= 0.8   (request: 0.2)"
        in short[1]
    )
    assert "goes to phi-3-mini at phi-3-mini" in short[1]


def test_refusals_exit_1(explain: Any) -> None:
    """Audio is refused in the rule's words, what no rule and no instance has is refused by name."""
    part = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
    audio = explain({"model": "auto", "messages": [{"role": "user", "content": [part]}]})
    nothing = explain({"model": "auto", "messages": MESSAGES})
    unknown = explain({"model": "gpt-9", "messages": MESSAGES})

    assert audio[0] == nothing[0] == unknown[0] == 1
    assert "refused by rule audio: audio is not served here yet" in audio[1]
    assert "refused: no rule matches" in nothing[1]
    assert "no instance serves `gpt-9`" in unknown[1]


def test_json_has_the_same(explain: Any) -> None:
    """--json gives rules, conditions and the choice as data."""
    status, text = explain({"model": "auto", "messages": MESSAGES, "temperature": 1, "stream": True}, "--json")
    found = json.loads(text)

    assert status == 0
    assert found["choice"]["rule"] == "creative"
    assert found["choice"]["instances"] == {"qwen2-7b": ["qwen2-7b"], "phi-3-mini": ["phi-3-mini"]}
    assert found["choice"]["dry_run_matches"] == ["trial"]
    assert [rule["name"] for rule in found["rules"] if rule["matches"]] == ["trial", "creative"]


@pytest.mark.parametrize("body", ["[]", "{", ""])
def test_what_is_no_body_is_wrong_usage(explain: Any, body: str) -> None:
    """Exit status 64 with what it must be."""
    status, text = explain(body)

    assert status == 64
    assert "--explain -" in text
