"""What is sent and when, decided before anything is sent: lengths drawn from a mix, arrivals from a rate. Pure."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ascendd.errors import UsageError

_LENGTHS = re.compile(r"(?P<prompt>[0-9]{1,7})x(?P<output>[0-9]{1,7})(?::(?P<weight>[0-9]{1,6}(?:\.[0-9]{1,6})?))?")
_RULE = "PROMPTxOUTPUT in tokens with an optional weight, several divided by commas, such as 128x64:3,1024x256:1"
# Plain words that tokenizers of all families know; which ones does not matter, only that prompts differ.
_WORD_LIST = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend"
)
_WORDS = _WORD_LIST.split()


class Lengths(NamedTuple):
    """One kind of request: tokens of its prompt, tokens to generate, and how often it comes beside the others."""

    num_prompt_tokens: int
    num_output_tokens: int
    weight: float


class PlannedRequest(NamedTuple):
    """Request `number`; `due_s` after the start, or None where it is sent once another has ended."""

    number: int
    num_prompt_tokens: int
    num_output_tokens: int
    due_s: float | None


def parse_mix(text: str) -> tuple[Lengths, ...]:
    """Return the kinds of request that `text` names. Raises UsageError with the rule."""
    mix = []
    for item in text.split(","):
        match = _LENGTHS.fullmatch(item.strip())
        if match is None:
            raise UsageError(f"--lengths {text!r}: {item.strip()!r} is not {_RULE}")
        lengths = Lengths(int(match["prompt"]), int(match["output"]), float(match["weight"] or 1))
        if not lengths.num_prompt_tokens or not lengths.num_output_tokens or not lengths.weight:
            raise UsageError(f"--lengths {text!r}: {item.strip()!r} has a 0; write {_RULE}")
        mix.append(lengths)
    return tuple(mix)


def plan_requests(
    mix: Sequence[Lengths], *, rate: float | None, constant: bool = False, seed: int = 0
) -> Iterator[PlannedRequest]:
    """
    Yield requests without end; the same arguments give the same ones.

    `rate` is in requests per second: at random as independent users come (Poisson), or evenly where `constant`.
    """
    rng = random.Random(seed)  # noqa: S311 - a load is to be repeatable, not secret
    weights = [lengths.weight for lengths in mix]
    due_s = 0.0
    for index in itertools.count():
        (lengths,) = rng.choices(mix, weights)
        yield PlannedRequest(
            index, lengths.num_prompt_tokens, lengths.num_output_tokens, None if rate is None else due_s
        )
        if rate is not None:
            due_s += 1 / rate if constant else rng.expovariate(rate)


@dataclass(frozen=True)
class PromptScale:
    """How words become tokens at one server: tokens of a word, and tokens that its template adds to every prompt."""

    tokens_per_word: float = 1.0
    num_template_tokens: float = 0.0

    def num_words(self, num_tokens: int) -> int:
        """Return how many words give a prompt of about `num_tokens`; one at least."""
        return max(1, round((num_tokens - self.num_template_tokens) / self.tokens_per_word))

    @classmethod
    def from_two(cls, first: tuple[int, int], second: tuple[int, int]) -> PromptScale:
        """Return the scale through two measured pairs of words and tokens."""
        slope = (second[1] - first[1]) / (second[0] - first[0])
        if slope <= 0:
            return cls()
        return cls(slope, first[1] - slope * first[0])


def make_prompt(num_words: int, seed: str, num_shared_words: int = 0) -> str:
    """Return a text of `num_words` words; the first `num_shared_words` are the same for every `seed`."""
    num_shared = min(num_shared_words, num_words)
    shared = random.Random("shared")  # noqa: S311
    own = random.Random(seed)  # noqa: S311
    words = [shared.choice(_WORDS) for _ in range(num_shared)]
    return " ".join(words + [own.choice(_WORDS) for _ in range(num_words - num_shared)])
