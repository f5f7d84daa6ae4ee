"""The two routes over real sockets: shapes, usage and order."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.system


def test_completion_answers_with_text_and_usage(api):
    """A plain completion gives the engine's text, its finish reason and its token counts."""
    answer = api.complete(prompt="the lazy dog", max_tokens=5)
    body = answer.json

    assert answer.status == 200, answer.body
    assert body["id"].startswith("cmpl-")
    assert body["choices"][0]["text"] == api.tokenizer.decode((api.ids("hello world ") * 5)[:5])
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["prompt_tokens"] == len(api.ids("the lazy dog"))
    assert body["usage"]["completion_tokens"] == 5
