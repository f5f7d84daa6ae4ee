"""Every sampling field against a real daemon with a tiny random model, over HTTP."""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.system

TINY_MODEL = Path(__file__).resolve().parent / "tiny_qwen2.py"
BLOCK = 16
Post = Callable[..., tuple[int, Any]]
BUSY = {
    "temperature": 0.9, "seed": 7, "min_p": 0.01, "presence_penalty": 0.5, "frequency_penalty": 0.2,
    "repetition_penalty": 1.1, "logit_bias": {"70": 3, "71": -50}, "bad_words": ["e", "th"], "ignore_eos": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def post(tiny_daemon: Callable[[int, str], AbstractContextManager[int]]) -> Iterator[Post]:
    """A daemon with 24 blocks; posts to a route and returns (status, JSON), in which no Infinity or NaN may be."""
    with tiny_daemon(256, f"max_num_blocks: 24, block_size: {BLOCK}") as port:

        def send(path: str, **body: Any) -> tuple[int, Any]:
            data = json.dumps({"model": "tiny", **body}).encode()
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/{path}", data, {"Content-Type": "application/json"}
            )
            try:
                with urllib.request.urlopen(request, timeout=120) as response:
                    status, text = response.status, response.read()
            except urllib.error.HTTPError as error:
                status, text = error.code, error.read()
            return status, json.loads(text, parse_constant=pytest.fail)

        yield send


def choice(post: Post, **body: Any) -> dict[str, Any]:
    status, answer = post("completions", **{"prompt": "the quick brown fox", "max_tokens": 12, **body})
    assert status == 200, answer
    chosen: dict[str, Any] = answer["choices"][0]
    return chosen


def test_b38_echoed_logprobs_twice(post: Post) -> None:
    """B38: two blocks and a token, sent twice beside a plain request that caches them: equal answers, one entry a token."""
    prompt = [(7 * place) % 250 for place in range(2 * BLOCK + 1)]
    body = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    first = choice(post, **body)
    choice(post, prompt=prompt, max_tokens=1, temperature=0)
    second = choice(post, **body)
    columns = first["logprobs"]

    assert first == second
    assert [len(columns[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")] == [34] * 4
    assert columns["token_logprobs"][0] is None
    assert all(-9999 < value <= 0 for value in columns["token_logprobs"][1:])
    assert "".join(columns["tokens"]) == first["text"]


def test_greedy_text_has_the_best_logprobs(post: Post) -> None:
    """With temperature 0 each token is the best of its alternatives, in completions and in chats."""
    columns = choice(post, temperature=0, logprobs=5)["logprobs"]
    status, chat = post(
        "chat/completions", messages=[{"role": "user", "content": "hi"}], logprobs=True, top_logprobs=3, max_tokens=5, temperature=0
    )  # fmt: skip

    for logprob, top in zip(columns["token_logprobs"], columns["top_logprobs"], strict=True):
        assert logprob == max(top.values())
    assert status == 200
    for item in chat["choices"][0]["logprobs"]["content"]:
        assert item["top_logprobs"][0]["logprob"] == item["logprob"]
        assert item["top_logprobs"][0]["bytes"] == item["bytes"]
        assert sum(math.exp(top["logprob"]) for top in item["top_logprobs"]) <= 1.0


def test_bias_bans_and_allowed_ids_hold(post: Post) -> None:
    """A bias of 100 is always drawn, a banned letter never comes, and allowed ids alone make up the text."""
    (letter,) = choice(post, prompt="q", echo=True, max_tokens=1, temperature=0)["text"][:1]
    biased = choice(post, logit_bias={"75": 100}, temperature=1, seed=1, max_tokens=6, ignore_eos=True)["text"]
    banned = choice(post, logit_bias={"75": 100}, bad_words=[biased[0]], temperature=1, seed=1, max_tokens=40)["text"]
    pair = choice(post, logit_bias={"75": 100}, bad_words=[biased[:2]], temperature=0, max_tokens=8, ignore_eos=True)
    allowed = choice(post, allowed_token_ids=[65, 66], temperature=2, seed=3, max_tokens=40, ignore_eos=True)["text"]

    assert letter == "q"
    assert biased == biased[0] * 6
    assert biased[0] not in banned
    assert biased[0] in pair["text"]
    assert biased[:2] not in pair["text"]
    assert len(set(allowed)) == 2
    assert len(allowed) == 40


def test_penalties_work_on_the_answer(post: Post) -> None:
    """With a bias that would repeat one letter for ever, the largest frequency penalty breaks the row."""
    plain = choice(post, logit_bias={"75": 5}, temperature=0, max_tokens=20, ignore_eos=True)["text"]
    penalised = choice(
        post, logit_bias={"75": 5}, temperature=0, max_tokens=20, ignore_eos=True, frequency_penalty=2, presence_penalty=2
    )["text"]  # fmt: skip

    assert len(set(plain)) == 1
    assert len(set(penalised)) > 5


@pytest.mark.parametrize("params", [{"temperature": 0}, BUSY], ids=["greedy", "busy"])
def test_b42_b45_same_request_same_text(post: Post, params: dict[str, Any]) -> None:
    """B42, B45: five times alone, then beside six others in a pool that cannot hold them all: always the same text."""
    body = {"prompt": "in the beginning " * 2, "max_tokens": 60, "ignore_eos": True, **params}
    texts = [choice(post, **body)["text"] for _ in range(5)]
    with ThreadPoolExecutor(7) as pool:
        others = [
            pool.submit(choice, post, prompt="x" * (10 * number + 1), max_tokens=100, ignore_eos=True, temperature=1)
            for number in range(6)
        ]
        together = pool.submit(choice, post, **body)

        assert [together.result()["text"], *texts[1:]] == [texts[0]] * 5
        assert all(other.result()["finish_reason"] == "length" for other in others)


def test_best_of_is_the_most_likely_of_its_samples(post: Post) -> None:
    """The answer of best_of 4 is that of the four samples with the highest sum of logprobs (case B53)."""
    body = {"prompt": "once", "max_tokens": 6, "temperature": 1.5, "seed": 11, "logprobs": 0, "ignore_eos": True}
    status, answer = post("completions", n=4, **body)
    best = choice(post, best_of=4, n=1, **body)
    sums = [sum(sample["logprobs"]["token_logprobs"]) for sample in answer["choices"]]

    assert status == 200
    assert best["text"] == answer["choices"][sums.index(max(sums))]["text"]
    assert len(set(sums)) == 4


def test_bans_that_leave_nothing_fail_the_request_alone(post: Post) -> None:
    """Nothing left to draw is 400 with the reason, and the engine serves the next request."""
    status, answer = post(
        "completions", prompt="a", allowed_token_ids=[65], stop_token_ids=[65], min_tokens=2, max_tokens=4
    )

    assert status == 400
    assert "no token is left to choose" in answer["error"]["message"]
    assert choice(post, ignore_eos=True, temperature=0)["finish_reason"] == "length"


@pytest.mark.parametrize(
    "body",
    [
        {"stop_token_ids": [320]}, {"logit_bias": {"320": 1}}, {"allowed_token_ids": [320]}, {"prompt": [320]}, {"prompt": [-1]},
    ],
    ids=str,
)  # fmt: skip
def test_out_of_vocabulary_is_400_and_the_engine_lives(post: Post, body: dict[str, Any]) -> None:
    """The bound is the model's own, 320, and is named; a plain request is served afterwards (cases B20-B25)."""
    status, answer = post("completions", **{"prompt": "a", **body})

    assert status == 400
    assert "out of vocabulary" in answer["error"]["message"]
    assert "319" in answer["error"]["message"]
    assert choice(post)["finish_reason"]
