"""Messages to a prompt text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ascendd.api.chat_template import ChatTemplate
from ascendd.errors import InvalidRequest

MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi <b>&</b>"}]


def render(source: str | None, *, extra: dict[str, object] | None = None, prompt: bool = True) -> str:
    """Render MESSAGES with `source`."""
    return ChatTemplate(source, {"bos_token": "<s>"}).render(MESSAGES, add_generation_prompt=prompt, extra=extra or {})


def test_template_sees_messages_and_special_texts() -> None:
    """Content goes in unescaped, bos_token is the tokenizer's, and blocks leave no blank lines."""
    source = "{{ bos_token }}\n{% for m in messages %}\n    {% if true %}\n{{ m.role }}: {{ m.content }}\n    {% endif %}\n{% endfor %}"

    assert render(source) == "<s>\nsystem: be brief\nuser: hi <b>&</b>\n"


@pytest.mark.parametrize(("prompt", "expected"), [(True, "yes"), (False, "no")])
def test_generation_prompt_is_optional(prompt: bool, expected: str) -> None:
    """add_generation_prompt reaches the template."""
    assert render("{{ 'yes' if add_generation_prompt else 'no' }}", prompt=prompt) == expected


def test_caller_s_keywords_reach_the_template() -> None:
    """B102: chat_template_kwargs are names in the template."""
    assert render("{{ enable_thinking }}", extra={"enable_thinking": False}) == "False"


def test_refusal_of_the_template_is_told() -> None:
    """B85: raise_exception becomes a 400 with the template's own words."""
    with pytest.raises(InvalidRequest, match="System role not supported"):
        render("{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + 1 }}",
        "{{ undefined_name.attribute }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
    ],
    ids=["type error", "undefined", "mutation", "escape from the sandbox"],
)
def test_error_inside_the_template_is_a_bad_request(source: str) -> None:
    """What fails while rendering, the sandbox included, is the request's error and nobody else's."""
    with pytest.raises(InvalidRequest, match="chat template refused"):
        render(source)


@pytest.mark.parametrize("source", [None, "{% for %}"], ids=["none", "broken"])
def test_model_without_a_usable_template_says_so(source: str | None) -> None:
    """B86: without a template the answer points to /v1/completions; a broken one is named."""
    with pytest.raises(InvalidRequest, match=r"/v1/completions|is broken"):
        render(source)


def test_tojson_escapes_nothing_for_html() -> None:
    """The tojson filter keeps <, & and other languages as they are, with json.dumps' arguments."""
    assert render("{{ messages[1] | tojson }}") == json.dumps(MESSAGES[1], ensure_ascii=False)
    assert render("{{ {'b': 1, 'a': 'č'} | tojson(indent=1, sort_keys=true) }}") == '{\n "a": "č",\n "b": 1\n}'


def test_extensions_that_templates_use_are_there() -> None:
    """The break statement and the generation tag work; strftime_now gives a year."""
    assert render("{% for m in messages %}{{ m.role }}{% break %}{% endfor %}") == "system"
    assert render("{% generation %}body{% endgeneration %}") == "body"
    assert render("{{ strftime_now('%Y') }}").isdigit()


def test_file_beside_the_model_comes_first(tmp_path: Path) -> None:
    """chat_template.jinja overrules tokenizer_config.json."""
    (tmp_path / "chat_template.jinja").write_text("from the file", encoding="utf-8")
    template = ChatTemplate.load(tmp_path, {"chat_template": "from the config"}, {})

    assert template.render(MESSAGES, add_generation_prompt=True, extra={}) == "from the file"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("plain", "plain"),
        ([{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "usual"}], "usual"),
    ],
    ids=["string", "list of named"],
)
def test_config_holds_one_or_several(tmp_path: Path, value: object, expected: str) -> None:
    """Of several named templates the default one is used."""
    template = ChatTemplate.load(tmp_path, {"chat_template": value}, {})

    assert template.render(MESSAGES, add_generation_prompt=True, extra={}) == expected
