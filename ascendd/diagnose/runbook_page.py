"""
Write the runbooks of the diagnoses from their table: `python -m ascendd.diagnose.runbook_page docs/runbooks`.

A diagnosis that is also an error of the daemon has that error's page, which is written by hand and left alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ascendd.diagnose.catalogue import Catalogue, Diagnosis, load_catalogue
from ascendd.errors import walk_errors

INDEX_NAME = "DIAGNOSES.md"


def pages(catalogue: Catalogue) -> dict[str, str]:
    """Return file name -> text of every generated page, the index among them."""
    own = {cls.code for cls in walk_errors()}
    rows = sorted(catalogue.diagnoses.values(), key=lambda row: row.id)
    texts = {f"{row.code}.md": _page(catalogue, row) for row in rows if row.code not in own}
    texts[INDEX_NAME] = _index([row for row in rows if not row.id.startswith("daemon.")])
    return texts


def _page(catalogue: Catalogue, row: Diagnosis) -> str:
    signs = {sign.name: sign for sign in catalogue.signs}
    names = {name.split(".")[0] for rule in catalogue.rules if rule.diagnosis_id == row.id for name in rule.when}
    needles = sorted({needle.decode() for name in names for needle in signs[name].needles})
    if needles:
        shown = ", ".join(f"`{needle}`" for needle in needles)
        seen = f"`ascendd diagnose` names {row.id} ({row.code}). It looks at lines that hold one of: {shown}."
    elif row.id == "env.empty_log":
        seen = f"`ascendd diagnose` names {row.id} ({row.code}) where every log that it was given is an empty file."
    else:
        seen = f"No log shows {row.id} ({row.code}) by itself; it is found by looking at the host."
    cause = row.cause if "{" not in row.cause else "`ascendd diagnose` puts in what the line says."
    return f"""# {row.code} {row.id}

## What you see

{seen}

## What it means

{row.title}. {cause if cause != row.title else ""}

What the daemon does about it: it {row.action.text}.

Source: {row.source}.

## What to look at

- `{row.check}`

## What to do

{row.remedy}

## How you know it is over

The log of the next start shows it no more: `ascendd diagnose LOG` names another cause, or none.
"""


def _index(rows: list[Diagnosis]) -> str:
    lines = [f"| {row.id} | [{row.code}]({row.code}.md) | {row.title} | {row.action.value} |" for row in rows]
    return "\n".join(
        [
            "# Diagnoses",
            "",
            "What `ascendd diagnose` can name, each with its error code. Written from the table in "
            "`ascendd/diagnose/data/diagnoses.json` by `python -m ascendd.diagnose.runbook_page docs/runbooks`.",
            "",
            "The daemon's own error codes, where no row here has them, are named `daemon.<name of the error>`; "
            "`ascendd diagnose --list` shows all.",
            "",
            "| id | code | what it is | what the daemon does |",
            "|---|---|---|---|",
            *lines,
            "",
        ]
    )


def main(folder: Path) -> None:
    """Write every page into `folder`."""
    for name, text in pages(load_catalogue()).items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
