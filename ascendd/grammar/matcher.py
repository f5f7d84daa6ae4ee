"""
GrammarFactory: grammars of requests, compiled for one tokenizer and kept; Matcher: one sequence's place in its own.

The library is llguidance: it computes masks as they are needed instead of compiling all states first, and bounds its
own work, so no grammar holds up others for long. https://github.com/guidance-ai/llguidance
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray
from tokenizers import Tokenizer

from ascendd.errors import InvalidRequest
from ascendd.ipc.messages import Grammar

_MAX_KEPT = 128
_MAX_PROBLEM_CHARS = 300
# What follows it in the library's message speaks to the library's authors.
_INTERNALS = ("<non-verbose/>", "<backtrace>")


class Matcher:
    """One sequence's place in its grammar; grows with the sequence and is never taken back."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._num_taken = 0

    def update(self, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        """Take in the tokens of the output that came since the last call."""
        new = token_ids[num_prompt_tokens + self._num_taken :]
        for token_id in new:
            self._matcher.consume_token(token_id)
        self._num_taken += len(new)

    def allowed(self) -> NDArray[np.bool_]:
        """Return which ids may come next [vocab]; none where the text can no longer fit the grammar."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        mask = np.unpackbits(bits, bitorder="little")[: self._vocab_size].astype(bool)
        return np.zeros_like(mask) if self._matcher.is_error() else mask

    @property
    def problem(self) -> str:
        """What is wrong with the grammar or with the text in it, on one line; empty while nothing is."""
        text: str = self._matcher.get_error()
        for mark in _INTERNALS:
            text = text.partition(mark)[0]
        return " ".join(text.split())[:_MAX_PROBLEM_CHARS]


class GrammarFactory:
    """Makes matchers; safe to call from several threads. The tokenizer is prepared at the first use."""

    def __init__(self, folder: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._folder = folder
        self._vocab_size = vocab_size
        self._eos_token_ids = list(eos_token_ids)
        self._tokenizer: LLTokenizer | None = None
        self._kept: OrderedDict[str, LLMatcher | str] = OrderedDict()
        self._lock = threading.Lock()
        # One line a problem; without it the message would repeat the whole grammar and the parser's state.
        self._limits = LLParserLimits(verbose_errors=False)

    def knows(self, grammar: Grammar) -> bool:
        """Whether `matcher` would answer at once."""
        with self._lock:
            return grammar.text in self._kept

    def matcher(self, grammar: Grammar) -> Matcher:
        """Return a fresh Matcher. Raises InvalidRequest for a grammar that cannot be compiled or that nothing fits."""
        with self._lock:
            made = self._kept.get(grammar.text)
            if made is not None:
                self._kept.move_to_end(grammar.text)
        if made is None:
            made = self._compile(grammar.text)
            with self._lock:
                self._kept[grammar.text] = made
                if len(self._kept) > _MAX_KEPT:
                    self._kept.popitem(last=False)
        if isinstance(made, str):
            raise InvalidRequest(f"`{grammar.param}` cannot be used: {made}", param=grammar.param)
        return Matcher(made.deep_copy(), self._vocab_size)

    def _compile(self, text: str) -> LLMatcher | str:
        """Return the compiled grammar, or what is wrong with it; some of that shows with the first mask only."""
        compiled = LLMatcher(self._prepared(), text, log_level=0, limits=self._limits)
        first = Matcher(compiled.deep_copy(), self._vocab_size)
        if not first.problem and first.allowed().any():
            return compiled
        problem = first.problem
        return "no text fits it" if problem in ("", "NoExtensionBias", "NoExtension") else problem

    def _prepared(self) -> LLTokenizer:
        with self._lock:
            if self._tokenizer is None:
                tokenizer = Tokenizer.from_file(str(self._folder / "tokenizer.json"))
                tokenizer.no_padding()
                tokenizer.no_truncation()
                self._tokenizer = LLTokenizer(
                    tokenizer.to_str(), n_vocab=self._vocab_size, eos_token=self._eos_token_ids or None
                )
            return self._tokenizer


@functools.cache
def grammar_factory(folder: Path, vocab_size: int, eos_token_ids: tuple[int, ...]) -> GrammarFactory:
    """Return the one factory of this process for a model, so that what one thread compiled no other compiles again."""
    return GrammarFactory(folder, vocab_size, eos_token_ids)
