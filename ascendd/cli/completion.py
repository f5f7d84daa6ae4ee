"""`python -m ascendd.cli.completion bash|zsh|fish`: the completion script that a package installs."""

from __future__ import annotations

import sys

from typer.completion import get_completion_script  # type: ignore[attr-defined]

from ascendd.cli.app import COMPLETE_VARIABLE
from ascendd.errors import UsageError

SHELLS = ("bash", "zsh", "fish")


def completion_script(shell: str) -> str:
    """Return the script for `shell`; it asks `ascendd` itself for every word. Raises UsageError."""
    if shell not in SHELLS:
        raise UsageError(f"{shell} is not a known shell", remedy=f"Write one of {', '.join(SHELLS)}.")
    return get_completion_script(prog_name="ascendd", complete_var=COMPLETE_VARIABLE, shell=shell) + "\n"


if __name__ == "__main__":
    sys.stdout.write(completion_script(sys.argv[1] if len(sys.argv) > 1 else ""))
