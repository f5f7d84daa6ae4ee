"""What became of one request, in seconds since the start of the run."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Outcome:
    """
    One request: when it was due, when it went out, when text came and when it ended.

    `due_s` is when it should have been sent: a client that falls behind a rate would otherwise hide the waiting of its
    users. `error` is None for a whole answer, else the kind of failure.
    """

    index: int
    due_s: float
    sent_s: float = 0.0
    end_s: float = 0.0
    text_at_s: list[float] = field(default_factory=list)
    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    error: str | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens generated, by the server's own count where it gave one, else pieces of text."""
        return len(self.text_at_s) if self.num_output_tokens is None else self.num_output_tokens

    @property
    def first_token_s(self) -> float | None:
        """Time to the first text, from when the request was due."""
        return self.text_at_s[0] - self.due_s if self.text_at_s else None

    @property
    def whole_s(self) -> float:
        """Time to the end, from when the request was due."""
        return self.end_s - self.due_s

    @property
    def per_token_s(self) -> float | None:
        """Mean time of an output token behind the first one."""
        if not self.text_at_s or self.num_tokens < 2:
            return None
        return (self.text_at_s[-1] - self.text_at_s[0]) / (self.num_tokens - 1)

    @property
    def gaps_s(self) -> list[float]:
        """Times between pieces of text, as a reader sees them; a piece may be several tokens."""
        return [later - earlier for earlier, later in zip(self.text_at_s, self.text_at_s[1:], strict=False)]
