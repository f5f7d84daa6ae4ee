"""What the instance does to prompts before the model reads them, as its configuration says, and what that saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ascendd.api.clean_text import collapse_whitespace, strip_html
from ascendd.api.prompts import Prompt
from ascendd.config.schema import PreprocessSection

Count = Callable[[str], int]
Removed = dict[str, int]

HTML, WHITESPACE, REPEATED_SYSTEM, TRUNCATED = "html", "whitespace", "repeated_system", "truncated"
# Roles whose text comes from outside; what the model itself said is left as it was, in the prefix cache too.
_CLEANED_ROLES = frozenset({"system", "user", "tool"})


@dataclass(frozen=True)
class Preprocessor:
    """Applies one `preprocess` section. Methods count removed tokens under the name of the step, by `count`."""

    section: PreprocessSection

    @property
    def truncates(self) -> bool:
        """Whether a prompt that is too long is shortened."""
        return self.section.truncate == "last"

    def clean_text(self, text: str, count: Count, removed: Removed) -> str:
        """Return `text` without what the switches name."""
        section = self.section
        if section.strip_html:
            text = self._note(HTML, text, strip_html(text), count, removed)
        if section.whitespace != "keep":
            cleaned = collapse_whitespace(text, keep_indent=section.whitespace == "inline")
            text = self._note(WHITESPACE, text, cleaned, count, removed)
        return text

    def clean_messages(self, messages: list[dict[str, Any]], count: Count, removed: Removed) -> list[dict[str, Any]]:
        """Return the messages cleaned, with the server's system prompt at their head."""
        section = self.section
        messages = [
            {**message, "content": self.clean_text(message["content"], count, removed)}
            if message["role"] in _CLEANED_ROLES
            else message
            for message in messages
        ]
        if section.drop_repeated_system:
            messages = self._without_repeats(messages, count, removed)
        return self._with_system(messages)

    def truncate(self, prompt: Prompt, room: int) -> Prompt:
        """
        Return the last tokens of `prompt` where the policy is `last`, as many as keep_last_tokens and `room` allow.

        A system part at its head, marked by `num_head_tokens`, is kept in front of them as far as half of the room.
        """
        section = self.section
        num_tokens = len(prompt.token_ids)
        limit = room if section.keep_last_tokens is None else min(room, section.keep_last_tokens)
        if not self.truncates or num_tokens <= limit or limit < 1:
            return prompt
        num_head = prompt.num_head_tokens if prompt.num_head_tokens <= limit // 2 else 0
        cut = num_tokens - (limit - num_head)
        kept = prompt.token_ids[:num_head] + prompt.token_ids[cut:]
        pieces = prompt.pieces[:num_head] + prompt.pieces[cut:]
        return replace(prompt, token_ids=kept, pieces=pieces, removed={**prompt.removed, TRUNCATED: num_tokens - limit})

    def _with_system(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Put the server's text first, so that all requests begin alike; a client's own follows in the same message."""
        text = self.section.system_prompt
        if text is None:
            return messages
        if messages and messages[0]["role"] == "system":
            if self.section.system_prompt_mode == "default":
                return messages
            own = messages[0]["content"]
            is_whole = self.section.system_prompt_mode == "replace" or own.strip() in ("", text.strip())
            return [{**messages[0], "content": text if is_whole else f"{text}\n\n{own}"}, *messages[1:]]
        return [{"role": "system", "content": text}, *messages]

    @staticmethod
    def _without_repeats(messages: list[dict[str, Any]], count: Count, removed: Removed) -> list[dict[str, Any]]:
        """Leave out system messages whose text an earlier one has."""
        seen: set[str] = set()
        kept = []
        for message in messages:
            if message["role"] == "system":
                if message["content"] in seen:
                    removed[REPEATED_SYSTEM] = removed.get(REPEATED_SYSTEM, 0) + count(message["content"])
                    continue
                seen.add(message["content"])
            kept.append(message)
        return kept

    @staticmethod
    def _note(step: str, before: str, after: str, count: Count, removed: Removed) -> str:
        """Count what a step took out; a text that would only grow, by entities or lines, still changes."""
        if after != before:
            removed[step] = removed.get(step, 0) + max(0, count(before) - count(after))
        return after
