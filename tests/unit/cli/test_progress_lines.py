"""Progress where nobody looks at a terminal, and where somebody does."""

from __future__ import annotations

import io

from ascendd.cli.progress_lines import ProgressLines


class Terminal(io.StringIO):
    """A stream that calls itself a terminal."""

    def isatty(self) -> bool:
        """Say yes."""
        return True


def test_one_line_per_tenth() -> None:
    """A hundred steps are eleven lines, each stage starts anew, and repeated values are silent."""
    stream = io.StringIO()

    with ProgressLines(stream) as lines:
        for done in range(101):
            lines.show("converting", done, 100)
        lines.show("converting", 100, 100)
        lines.show("verifying", 55, 100)

    expected = [f"converting: {tenth * 10} %" for tenth in range(11)] + ["verifying: 50 %"]
    assert stream.getvalue().splitlines() == expected


def test_empty_stage_is_done() -> None:
    """A stage without bytes is complete at once and divides by nothing."""
    stream = io.StringIO()

    with ProgressLines(stream) as lines:
        lines.show("converting", 0, 0)

    assert stream.getvalue() == "converting: 100 %\n"


def test_terminal_gets_a_bar() -> None:
    """On a terminal the stage is drawn as a bar with sizes, not as lines."""
    stream = Terminal()

    with ProgressLines(stream) as lines:
        lines.show("converting", 50, 100)

    assert "converting" in stream.getvalue()
    assert "50/100 bytes" in stream.getvalue()
    assert "50 %\n" not in stream.getvalue()
