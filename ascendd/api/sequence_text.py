"""The text of one sequence: detokenized, cut at stop strings, and with each token's part of it where that is told."""

from __future__ import annotations

from collections import deque

from ascendd.api.logprobs import TokenEntry, finite
from ascendd.api.parameters import GenerationSpec
from ascendd.api.stop_strings import StopMatcher
from ascendd.api.tokenizer import ModelTokenizer
from ascendd.errors import InternalError
from ascendd.ipc.messages import NO_TOKEN, FinishReason, TokenLogprobs

FINISH_REASONS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


class SequenceText:
    """Takes a sequence's tokens one by one; joined, what `push` returns is its text."""

    def __init__(self, spec: GenerationSpec, tokenizer: ModelTokenizer) -> None:
        self._spec = spec
        self._detokenizer = tokenizer.detokenizer(skip_special_tokens=spec.skip_special_tokens)
        self._matcher = StopMatcher(spec.stop_strings, include_in_output=spec.include_stop)
        self._is_told = spec.logprobs.output is not None
        self._is_ranked = spec.best_of > spec.n
        # Tokens whose part of the text is not given out yet, because a stop string may begin in it.
        self._held: deque[TokenEntry] = deque()
        self._num_made = 0
        self._num_given = 0
        self.sum_of_logprobs = 0.0
        self.num_tokens = 0
        self.finish_reason: str | None = None

    def has_ended(self) -> bool:
        """Whether no more text comes."""
        return self.finish_reason is not None

    def push(self, token_id: int, finish: int, scores: TokenLogprobs | None) -> tuple[str, list[TokenEntry]]:
        """
        Add a token; return the text it makes certain and the entries of the tokens whose text that completes.

        Sets `finish_reason` with the last one. Entries are only made where logprobs were asked for.
        """
        if token_id == NO_TOKEN:
            self.finish_reason = FINISH_REASONS[FinishReason(finish)]
            return "", []
        self.num_tokens += 1
        text = self._detokenize(token_id, finish)
        if self._is_told or self._is_ranked:
            if scores is None:
                raise InternalError("the engine told no logprobs of a token")
            self.sum_of_logprobs += finite(scores.logprob)
            if self._is_told:
                self._held.append(TokenEntry(token_id, text, self._num_made, scores))
                self._num_made += len(text)
        out = self._match(text)
        self._num_given += len(out)
        return out, self._release() if self._held else []

    def _detokenize(self, token_id: int, finish: int) -> str:
        is_stop_text = token_id in self._spec.stop_texts and self.num_tokens > self._spec.min_tokens
        ends_by_token = finish == FinishReason.STOP or is_stop_text
        if not ends_by_token:
            text = self._detokenizer.push(token_id)
        elif not self._spec.include_stop:
            text = ""
        elif is_stop_text:
            text = self._spec.stop_texts[token_id]
        else:
            text = self._detokenizer.push(token_id)
        if ends_by_token or finish:
            held = self._detokenizer.flush()
            text = held + text if is_stop_text else text + held
            self.finish_reason = "stop" if ends_by_token else FINISH_REASONS[FinishReason(finish)]
        return text

    def _match(self, text: str) -> str:
        if self.num_tokens <= self._spec.min_tokens:
            out = self._matcher.pass_through(text)
        else:
            out, stop_string = self._matcher.push(text)
            if stop_string is not None:
                self.finish_reason = "stop"
        return out + self._matcher.flush() if self.finish_reason is not None else out

    def _release(self) -> list[TokenEntry]:
        """Take the entries whose text is out; at the end all, cut where the text is cut."""
        released: list[TokenEntry] = []
        while self._held:
            entry = self._held[0]
            if entry.offset + len(entry.text) > self._num_given:
                if self.finish_reason is None:
                    break
                begin = min(entry.offset, self._num_given)
                entry = entry._replace(text=entry.text[: self._num_given - begin], offset=begin)
            self._held.popleft()
            released.append(entry)
        return released
