"""Stop strings over a stream of text pieces; where the pieces are cut makes no difference."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """
    Passes text on until a stop string is complete.

    Text that may be the beginning of a stop string is held back, so nothing of it is ever given out. Of several stop
    strings the one that is complete first ends the text; of those that end together, the longest.
    """

    def __init__(self, stop_strings: Sequence[str], *, include_in_output: bool = False) -> None:
        self._stop_strings = tuple(stop_strings)
        self._include = include_in_output
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Add `text`; return what can be given out, and the stop string that is complete, if one is."""
        if not self._stop_strings:
            return text, None
        buffer = self._held + text
        match = self._first_match(buffer)
        if match is not None:
            start, end, stop_string = match
            self._held = ""
            return buffer[: end if self._include else start], stop_string
        num_held = self._num_held(buffer)
        self._held = buffer[len(buffer) - num_held :]
        return buffer[: len(buffer) - num_held], None

    def pass_through(self, text: str) -> str:
        """Return `text` behind what was held, without a search: for tokens before min_tokens."""
        held, self._held = self._held, ""
        return held + text

    def flush(self) -> str:
        """Return what was held back, at the end of a sequence that no stop string ended."""
        return self.pass_through("")

    def _first_match(self, buffer: str) -> tuple[int, int, str] | None:
        best: tuple[int, int, str] | None = None
        for stop_string in self._stop_strings:
            start = buffer.find(stop_string)
            if start < 0:
                continue
            end = start + len(stop_string)
            if best is None or (end, start) < (best[1], best[0]):
                best = (start, end, stop_string)
        return best

    def _num_held(self, buffer: str) -> int:
        """Length of the longest end of `buffer` that begins a stop string."""
        longest = 0
        for stop_string in self._stop_strings:
            for length in range(min(len(stop_string) - 1, len(buffer)), longest, -1):
                if buffer.endswith(stop_string[:length]):
                    longest = length
                    break
        return longest
