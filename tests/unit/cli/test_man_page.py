"""Man pages and completion are written from the program, so they name all that it has."""

from __future__ import annotations

import os
import subprocess
import sys
import typing
from pathlib import Path

import msgspec
import pytest

from ascendd.cli.app import COMPLETE_VARIABLE, VERBS
from ascendd.cli.completion import SHELLS, completion_script
from ascendd.cli.man_page import command_page, file_page, main
from ascendd.config.schema import InstanceConfig
from ascendd.errors import UsageError


def test_the_command_page_names_every_verb() -> None:
    """Each verb has a section, its options and the exit statuses."""
    page = command_page()

    assert [verb for verb in VERBS if f".SS {verb}" not in page] == []
    assert r"\fB\-\-tensor\-parallel\-size\fR" in page
    assert ".TP\n78\nthe instance file is wrong" in page


def test_the_file_page_names_every_key_with_rule_default_and_comment() -> None:
    """Each section and key of the schema is there, with what its comment in the schema says."""
    page = file_page()
    hints = typing.get_type_hints(InstanceConfig)
    sections = [hint for hint in hints.values() if isinstance(hint, type) and issubclass(hint, msgspec.Struct)]
    keys = [field.name for section in sections for field in msgspec.structs.fields(section)]
    keys += [name for name, hint in hints.items() if hint not in sections]

    assert [key for key in keys if rf"\fB{key}\fR (" not in page] == []
    assert r"\fBmax_num_seqs\fR (integer from 1 to 65536, default 64)" in page
    assert "Tokens in a KV block; default 16, on NPU 128." in page


def test_no_line_begins_with_a_dot_or_quote_by_accident(tmp_path: Path) -> None:
    """Roff would take such a line for a request; every request in the pages is one of ours."""
    main(tmp_path)
    lines = [line for path in tmp_path.rglob("*.[58]") for line in path.read_text().splitlines()]

    assert {line.split()[0] for line in lines if line.startswith((".", "'"))} == {
        ".TH", ".SH", ".SS", ".TP", ".B", ".BR",
    }  # fmt: skip


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_asks_the_program(shell: str) -> None:
    """The script of each shell calls ascendd for the words."""
    assert COMPLETE_VARIABLE in completion_script(shell)


def test_an_unknown_shell_is_named() -> None:
    """Another shell is wrong usage, with the known ones."""
    with pytest.raises(UsageError, match="tcsh is not a known shell"):
        completion_script("tcsh")


def test_the_program_gives_the_words() -> None:
    """Asked as bash asks, it gives the verbs that begin so."""
    done = subprocess.run(
        [sys.executable, "-m", "ascendd"],
        env={**os.environ, COMPLETE_VARIABLE: "complete_bash", "COMP_WORDS": "ascendd re", "COMP_CWORD": "1"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert "release" in done.stdout.split()
