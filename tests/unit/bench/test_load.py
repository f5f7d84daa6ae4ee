"""The load is decided before it is sent: repeatable, in the asked mix, at the asked rate."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascendd.bench.load import Lengths, PromptScale, make_prompt, parse_mix, plan_requests
from ascendd.errors import UsageError


def test_mix_has_lengths_and_weights() -> None:
    """Lengths without a weight have the weight 1."""
    assert parse_mix("128x64:3, 1024x256") == (Lengths(128, 64, 3.0), Lengths(1024, 256, 1.0))


@pytest.mark.parametrize(
    "text", ["", "128", "128x", "x64", "128x0", "0x64", "128x64:0", "128x64,,1x1", "-1x4", "1x1:nan"]
)
def test_a_mix_that_is_none_is_refused_with_the_rule(text: str) -> None:
    """The message says how a mix is written."""
    with pytest.raises(UsageError, match="PROMPTxOUTPUT"):
        parse_mix(text)


def test_the_same_seed_plans_the_same_requests() -> None:
    """Lengths and arrivals are those of the seed, and others for another."""
    mix = parse_mix("10x1,20x2")

    def first(seed: int) -> list[object]:
        return list(itertools.islice(plan_requests(mix, rate=3.0, seed=seed), 50))

    assert first(5) == first(5)
    assert first(5) != first(6)


def test_constant_arrivals_are_evenly_spaced() -> None:
    """At 4 a second a request is due each quarter of a second, the first at once."""
    planned = itertools.islice(plan_requests(parse_mix("1x1"), rate=4.0, constant=True), 5)

    assert [request.due_s for request in planned] == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_random_arrivals_keep_the_rate() -> None:
    """2,000 arrivals at 50 a second take about 40 seconds, and gaps differ."""
    planned = list(itertools.islice(plan_requests(parse_mix("1x1"), rate=50.0, seed=1), 2000))
    times = [request.due_s or 0.0 for request in planned]

    assert 36 < times[-1] < 44
    assert times == sorted(times)
    assert len({round(b - a, 6) for a, b in itertools.pairwise(times)}) > 1000


def test_lengths_come_as_often_as_their_weight_says() -> None:
    """Of 4,000 requests three quarters are of the kind with weight 3."""
    planned = itertools.islice(plan_requests(parse_mix("128x64:3,1024x256:1"), rate=None), 4000)
    counts = Counter(request.num_prompt_tokens for request in planned)

    assert 2800 < counts[128] < 3200
    assert counts[128] + counts[1024] == 4000


def test_scale_is_learned_from_two_requests() -> None:
    """50 words of 85 tokens and 250 of 385 are 1.5 tokens a word behind a template of 10."""
    scale = PromptScale.from_two((50, 85), (250, 385))

    assert scale == PromptScale(1.5, 10.0)
    assert scale.num_words(100) == 60
    assert scale.num_words(1) == 1


def test_a_scale_that_makes_no_sense_is_one_token_a_word() -> None:
    """A server that counts the same for both texts teaches nothing."""
    assert PromptScale.from_two((50, 7), (250, 7)) == PromptScale(1.0, 0.0)


@given(num_words=st.integers(1, 300), num_shared=st.integers(0, 400), seeds=st.tuples(st.text(), st.text()))
def test_prompts_share_what_was_asked_and_have_their_length(
    num_words: int, num_shared: int, seeds: tuple[str, str]
) -> None:
    """Both prompts have all their words, and begin with the same ones as far as asked."""
    first, second = (make_prompt(num_words, seed, num_shared).split(" ") for seed in seeds)

    assert len(first) == len(second) == num_words
    assert first[:num_shared] == second[:num_shared]


def test_prompts_of_different_seeds_begin_differently() -> None:
    """Without a shared part no prefix cache can answer for another request."""
    beginnings = {tuple(make_prompt(40, f"load {n}").split(" ")[:8]) for n in range(200)}

    assert len(beginnings) == 200
