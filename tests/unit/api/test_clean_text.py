"""Cleaning takes out what it says and nothing else, for every text, in time linear in it."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascendd.api.clean_text import collapse_whitespace, strip_html

texts = st.text(st.sampled_from("ab<>&;/=\"'! \n\t-#x3pdivscriptltgt") | st.characters(exclude_categories=["Cs"]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<p>one</p><p>two</p>", "\none\n\ntwo\n"),
        ("a<br>b<br/>c", "a\nb\nc"),
        ("x &amp; y &lt;b&gt; &#65;&#x42;", "x & y <b> AB"),
        ("<a href=\"x>y\" title='<b>'>link</a>", "link"),
        ("<script>if (a < b) { alert('<p>') }</script>kept<style>p { }</style>", "kept"),
        ("before<!-- <p>gone</p> -->after", "beforeafter"),
        ("<!DOCTYPE html><html><head><title>T</title></head><body>B</body></html>", "TB"),
        ("<B>bold</B> and <i >it</i\n>", "bold and it"),
        ("<p>never closed", "\nnever closed"),
        ("<textarea>a<b>c</textarea>", "ac"),
        ("  lead <b>and</b> trail  ", "  lead and trail  "),
    ],
)
def test_markup_goes(text: str, expected: str) -> None:
    """Tags, comments and scripts are gone, entities are characters, blocks are lines."""
    assert strip_html(text) == expected


@pytest.mark.parametrize(
    "text",
    ["a < b and c > d", "if (x<y && y>z)", "List<int> and Map<String, T>", "1 <2", "<3", "AT&T", "<-- no", "</>", "x<"],
)
def test_what_is_no_html_stays(text: str) -> None:
    """Comparisons, generics and lone signs are text."""
    assert strip_html(text) == text


@given(texts)
def test_text_without_signs_of_markup_is_the_same_text(text: str) -> None:
    """Without `<` and `&` not a character changes."""
    plain = text.replace("<", "").replace("&", "")

    assert strip_html(plain) == plain


@given(texts)
def test_no_tag_of_html_survives_that_was_not_written_as_entities(text: str) -> None:
    """Whatever is fed, nothing that a browser would take for an element is left."""
    left = strip_html(text.replace("&", "")).lower()

    for name in ("p", "div", "script", "b", "a"):
        assert f"<{name}>" not in left


@pytest.mark.parametrize(
    "unit", ["<", "<!--", "<a ", "<a x='", "<a><b>", "<div><p></span>", "<h1><span>", "<div>", "&amp;", "</a "]
)
def test_time_is_linear(unit: str) -> None:
    """Eight times the text takes nowhere near sixty-four times the time."""

    def seconds(count: int) -> float:
        best = 1e9
        for _ in range(3):
            started = time.process_time()
            strip_html(unit * count)
            best = min(best, time.process_time() - started)
        return best

    assert seconds(32_000) < 30 * max(seconds(4_000), 0.002)


@pytest.mark.parametrize(
    ("text", "inline", "everything"),
    [
        ("a  b\t\tc ", "a b c", "a b c"),
        ("a\n\n\n\nb", "a\n\nb", "a\n\nb"),
        ("def f():\n    return  1\n", "def f():\n    return 1", "def f():\nreturn 1"),
        ("\n\n a\r\n b\r\n\n", " a\n b", "a\nb"),
        ("a\u3000\u00a0b", "a b", "a b"),
        (" \n ", "", ""),
    ],
)
def test_runs_collapse(text: str, inline: str, everything: str) -> None:
    """Inside of lines always, indentation only where asked."""
    assert collapse_whitespace(text, keep_indent=True) == inline
    assert collapse_whitespace(text, keep_indent=False) == everything


@given(texts, st.booleans())
def test_collapsing_keeps_every_word_and_changes_nothing_twice(text: str, keep_indent: bool) -> None:
    """Words and their order are the same, the text is never longer, and a second pass finds nothing."""
    once = collapse_whitespace(text, keep_indent=keep_indent)

    assert once.split() == text.split()
    assert len(once) <= len(text)
    assert collapse_whitespace(once, keep_indent=keep_indent) == once
