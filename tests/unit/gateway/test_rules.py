"""Rules decide by the first match, say why, and never move a request that names a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascendd.errors import ConfigInvalid
from ascendd.gateway.condition import parse_condition
from ascendd.gateway.request_facts import read_facts
from ascendd.gateway.rules import BY_NAME, NO_RULE, Choice, RuleBook
from ascendd.gateway.schema import GatewayConfig, load_gateway, load_text

EXAMPLE = Path(__file__).resolve().parents[3] / "packaging" / "gateway.yaml"


def choose(config: GatewayConfig, body: dict[str, Any], key: str = "") -> Choice:
    """What the rules make of `body`, whose model is `auto` unless it says otherwise."""
    return RuleBook(config).choose(read_facts({"model": "auto", **body}, key=key, prefix_chars=100))


def with_rules(rules: str) -> GatewayConfig:
    """Two instances, big and small, and `rules` in YAML."""
    return load_text(
        f"instances: [{{name: big, url: 'http://127.0.0.1:1'}}, {{name: small, url: 'http://127.0.0.1:2'}}]\nrules: {rules}"
    )


@pytest.mark.parametrize(
    ("body", "rule", "models"),
    [
        ({"temperature": 0.8}, "creative", ("qwen2-7b", "phi-3-mini")),
        ({"temperature": 1.2, "max_tokens": 16}, "creative", ("qwen2-7b", "phi-3-mini")),
        ({"temperature": 0.79, "max_tokens": 127}, "short", ("phi-3-mini", "qwen2-7b")),
        ({"max_completion_tokens": 100}, "short", ("phi-3-mini", "qwen2-7b")),
        ({"max_tokens": 128}, "rest", ("qwen2-7b", "phi-3-mini")),
        ({}, "rest", ("qwen2-7b", "phi-3-mini")),
        ({"model": "phi-3-mini", "temperature": 2.0}, BY_NAME, ("phi-3-mini",)),
        ({"model": "gpt-4"}, NO_RULE, ()),
    ],
)
def test_the_example_decides_as_its_comments_say(body: dict[str, Any], rule: str, models: tuple[str, ...]) -> None:
    """Creative requests go to the large model, short ones to the small one, and a model that is named is kept."""
    choice = choose(load_gateway(EXAMPLE), body)

    assert (choice.rule, choice.models, choice.refuse) == (rule, models, None)


def test_the_example_refuses_audio() -> None:
    """Audio is recognised in the parts of a message and refused in the operator's own words."""
    part = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
    choice = choose(load_gateway(EXAMPLE), {"temperature": 1.0, "messages": [{"role": "user", "content": [part]}]})

    assert choice == Choice("audio", (), "audio is not served here yet; send text")


def test_a_dry_run_is_told_and_decides_nothing() -> None:
    """The rule behind it chooses."""
    config = with_rules("[{name: try, dry_run: true, when: {stream: true}, to: small}, {name: rest, to: big}]")

    assert choose(config, {"stream": True}) == Choice("rest", ("big",), None, ("try",))
    assert choose(config, {"stream": False}) == Choice("rest", ("big",))


@pytest.mark.parametrize(
    ("when", "body", "key", "matches"),
    [
        ("{model: 'gpt-*'}", {"model": "gpt-4o"}, "", True),
        ("{model: ['gpt-*', tiny]}", {"model": "tiny"}, "", True),
        ("{model: 'gpt-*'}", {}, "", False),
        ("{key: team-a}", {}, "team-a", True),
        ("{key: team-a}", {}, "team-b", False),
        ("{key: 'team-*'}", {}, "team-b", True),
        ("{presence_penalty: '> 0'}", {"presence_penalty": 0.5}, "", True),
        ("{presence_penalty: '> 0'}", {}, "", False),
        ("{frequency_penalty: '> 0, < 1'}", {"frequency_penalty": 1}, "", False),
        ("{temperature: 0}", {"temperature": 0}, "", True),
        ("{temperature: 0}", {"temperature": "0"}, "", False),
        ("{stream: true, max_tokens: '>= 10'}", {"stream": True, "max_tokens": 10}, "", True),
        ("{stream: true, max_tokens: '>= 10'}", {"max_tokens": 10}, "", False),
        ("{prompt_tokens: '> 100'}", {"prompt": "x" * 404}, "", True),
        ("{prompt_tokens: '> 100'}", {"prompt": "x" * 400}, "", False),
        ("{prompt_tokens: 3}", {"prompt": [7, 8, 9]}, "", True),
        ("{modality: image}", {"messages": [{"content": [{"type": "image_url"}]}]}, "", True),
        ("{modality: text}", {"messages": [{"content": "hi"}]}, "", True),
        ("{modality: audio}", {"modalities": ["text", "audio"]}, "", True),
    ],
)
def test_every_condition(when: str, body: dict[str, Any], key: str, matches: bool) -> None:
    """Each key of `when` holds for what it says, and a field that is absent holds for nothing."""
    choice = choose(with_rules(f"[{{name: one, when: {when}, to: big}}]"), body, key)

    assert (choice.rule == "one") is matches


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = ("model", "messages", "prompt", "temperature", "max_tokens", "stream", "modalities", "audio")


@given(st.dictionaries(st.sampled_from(FIELDS), json_values))
def test_facts_are_read_from_any_body(body: dict[str, Any]) -> None:
    """Whatever a client sends has facts: judging it is the instance's business."""
    facts = read_facts(body, key="", prefix_chars=50)

    assert facts.modalities
    assert len(facts.prefix) <= 500
    assert facts.numbers["prompt_tokens"] >= 0


@given(st.integers(-1000, 1000), st.integers(-1000, 1000), st.integers(-1000, 1000))
def test_a_range_holds_between_its_ends(low: int, high: int, number: int) -> None:
    """`>= a, < b` is the half-open range."""
    assert parse_condition(f">= {low}, < {high}")(number) is (low <= number < high)


@pytest.mark.parametrize("text", ["", ">", ">> 1", "1,", "high", "=> 1", "1 2", True])
def test_a_condition_that_is_none_is_refused(text: Any) -> None:
    """The rule is in the error."""
    with pytest.raises(ValueError, match=r"such as `>= 0\.8`"):
        parse_condition(text)


@given(
    st.sampled_from(["auto", "big", "small", "gpt-4", "gpt-x", "", "*", "other"]),
    st.floats(-1, 3), st.booleans(), st.sampled_from(["", "team-a", "b"]),
)  # fmt: skip
def test_the_choice_is_the_first_rule_that_is_explained_to_match(
    model: str, temperature: float, stream: bool, key: str
) -> None:
    """What `ascendd route --explain` shows is what decides, whatever the model is called."""
    book = RuleBook(with_rules("""
      - {name: dry, dry_run: true, when: {model: ['*']}, to: big}
      - {name: hot, when: {temperature: '> 1.5'}, to: big}
      - {name: alias, when: {model: [gpt-4, big], temperature: '0.5, < 1'}, to: small}
      - {name: wild, when: {model: 'gpt-*', stream: true, key: 'team-*'}, to: small}
      - {name: mine, when: {model: [auto, small], temperature: '>= 0, <= 1', stream: false}, to: big}
    """))  # fmt: skip
    facts = read_facts({"model": model, "temperature": temperature, "stream": stream}, key=key, prefix_chars=9)
    matching = [
        rule.name for rule, rows in book.explain(facts) if all(holds for _, _, holds in rows) and not rule.dry_run
    ]
    fallback = BY_NAME if model in ("big", "small") else NO_RULE

    assert book.choose(facts).rule == (matching[0] if matching else fallback)
    assert book.choose(facts).shadowed == ("dry",)


def test_every_fault_of_a_file_is_told_at_once() -> None:
    """Unknown keys, wrong types and broken rules have their place in the message."""
    text = """
instances:
  - {name: a, url: "http://127.0.0.1:1/v1"}
  - {name: a, url: "ftp://x"}
rules:
  - {name: r, when: {temperature: hot}, to: nobody}
  - {name: s}
metrics: {host: 0.0.0.0}
"""
    with pytest.raises(ConfigInvalid) as caught:
        load_text(text)
    problems = "\n".join(caught.value.facts["problems"])

    for place in (
        "$.instances[0].url", "$.instances[1].url", "$.instances = 'a'", "$.rules[0].to", "$.rules[0].when.temperature",
        "$.rules[1]", "$.metrics.host",
    ):  # fmt: skip
        assert place in problems


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("rules: []", "$.instances: is required"),
        ("instances: [{name: a, url: 'http://h:1', port: 3}]", "$.instances[0].port"),
        ("instances: [{url: 'http://h:1'}]", "$.instances[0].name: is required"),
        (
            "instances: [{name: a, url: 'http://h:1'}]\nrules: [{name: r, when: {temprature: 1}, to: a}]",
            "did you mean `temperature`",
        ),
        ("instances: 3", "$.instances"),
        ("[]", "$ = []: must be a mapping"),
    ],
)
def test_a_fault_of_shape_has_its_place(text: str, place: str) -> None:
    """Also inside of lists."""
    with pytest.raises(ConfigInvalid) as caught:
        load_text(text)

    assert place in str(caught.value)
