"""Stop strings over pieces of text."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascendd.api.stop_strings import StopMatcher


def run(stops: list[str], pieces: list[str], *, include: bool = False) -> tuple[list[str], str | None]:
    """What is given out piece by piece, until a stop string is complete or the text ends."""
    matcher = StopMatcher(stops, include_in_output=include)
    out = []
    for piece in pieces:
        text, stop = matcher.push(piece)
        out.append(text)
        if stop is not None:
            return out, stop
    return [*out, matcher.flush()], None


@pytest.mark.parametrize(
    ("stops", "pieces", "include", "expected", "stop"),
    [
        (["DEFGHIJ"], ["D", "EF", "G", "HI", "J"], False, "", "DEFGHIJ"),
        (["XY"], ["aX", "b", "X", "Y"], False, "aXb", "XY"),
        (["lo"], ["Hello world"], False, "Hel", "lo"),
        (["b,c"], ["a,", "b,c", ",d"], True, "a,b,c", "b,c"),
        (["b,c"], ["a,", "b,c", ",d"], False, "a,", "b,c"),
        (["abcd", "bc"], ["abcd"], False, "a", "bc"),
        (["bc", "abc"], ["abc"], False, "", "abc"),
        (["zz"], ["az"], False, "az", None),
        ([], ["any", "thing"], False, "anything", None),
    ],
    ids=[
        "B10",
        "B12",
        "B13",
        "B14 with",
        "B14 without",
        "first end wins",
        "longest of one end",
        "no match",
        "no stops",
    ],
)
def test_stop_string_cuts_the_text(
    stops: list[str], pieces: list[str], include: bool, expected: str, stop: str | None
) -> None:
    """The text ends before the stop string, or behind it when asked, and nothing is sent twice."""
    out, found = run(stops, pieces, include=include)

    assert "".join(out) == expected
    assert found == stop


def test_no_character_of_a_stop_string_is_given_out_early() -> None:
    """B10: while the stop string grows, every piece given out is empty."""
    out, _ = run(["DEFGHIJ"], ["D", "EF", "G", "HI", "J"])

    assert out == ["", "", "", "", ""]


@given(
    text=st.text("ab", max_size=24),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), max_size=3),
    cuts=st.lists(st.integers(0, 24), max_size=8),
    include=st.booleans(),
)
def test_cuts_make_no_difference(text: str, stops: list[str], cuts: list[int], include: bool) -> None:
    """However the text is cut into pieces, output and stop string are those of one character at a time."""
    marks = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[low:high] for low, high in itertools.pairwise(marks)]
    by_piece, by_character = run(stops, pieces, include=include), run(stops, list(text), include=include)

    assert ("".join(by_piece[0]), by_piece[1]) == ("".join(by_character[0]), by_character[1])


@given(text=st.text("ab", max_size=24), stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_output_never_holds_a_stop_string(text: str, stops: list[str]) -> None:
    """Without include, no stop string is anywhere in what was given out."""
    out, found = run(stops, list(text))
    joined = "".join(out)

    assert not any(stop in joined for stop in stops)
    assert (found is None) == (not any(stop in text for stop in stops))
