"""
Write the page of each check and their index: `python -m ascendd.preflight.runbook_pages docs/runbooks`.

Everything on a page is taken from the check itself: what it looks at, the codes it names (each with a page of its own),
and every sentence that it may tell an operator to act by, with its Chinese from the catalogue.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Dict, List, Type

from ascendd.preflight.check import Check, Tier
from ascendd.preflight.discover import find_checks
from ascendd.preflight.language import catalogue
from ascendd.preflight.remedy_texts import PLACE, codes, templates

FOLDER, INDEX = "checks", "CHECKS.md"


def pages() -> Dict[str, str]:
    """Return path below docs/runbooks -> text of each page, the index among them."""
    checks = find_checks()
    texts = {f"{FOLDER}/{check.id}.md": _page(check) for check in checks}
    texts[INDEX] = _index(checks)
    return texts


def _page(check: Type[Check]) -> str:
    source = inspect.getsource(sys.modules[check.__module__])
    chinese = catalogue()
    about = (inspect.getdoc(sys.modules[check.__module__]) or "").partition(": ")[2]
    first = ", ".join(f"[{name}]({name}.md)" for name in check.requires) or "nothing"
    when = "with --deep, or when named" if check.tier is Tier.DEEP else "always, where it applies"
    live = "; again every 5 minutes while an instance serves" if check.live else ""
    named = ", ".join(f"[{code}](../{code}.md)" for code in codes(source)) or "those of the errors that it meets"
    told = [f"- {_shown(text)}  \n  {_shown_chinese(text, chinese)}" for text in templates(source)]
    acts = "\n".join(told) or "What the error says that it meets."
    return f"""# {check.id}: {check.title} ({chinese["titles"][check.id]})

{about}

| | |
|---|---|
| needs first | {first} |
| runs | {when}{live} |
| time limit | {check.timeout_s:g} s |
| codes of its findings | {named} |

## What it may tell you to do

{acts}

## Look yourself

- `ascendd doctor --only {check.id}` makes this check alone; `--json` adds everything that was measured.
- `ascendd doctor --explain {check.id}` tells what it looks at, and runs nothing.
"""


def _shown(text: str) -> str:
    return text.replace(PLACE, "...")


def _shown_chinese(text: str, chinese: Dict[str, Dict[str, str]]) -> str:
    return chinese["remedies"][text].format(*["..."] * text.count(PLACE))


def _index(checks: tuple[Type[Check], ...]) -> str:
    rows: List[str] = []
    for check in checks:
        found = codes(inspect.getsource(sys.modules[check.__module__]))
        shown = ", ".join(f"[{code}]({code}.md)" for code in found)
        chinese = catalogue()["titles"][check.id]
        rows.append(f"| [{check.id}]({FOLDER}/{check.id}.md) | {check.title} | {chinese} | {shown} |")
    return "\n".join(
        [
            "# Checks",
            "",
            "What `ascendd doctor` can find, by check, with the codes of its findings. Written from the checks by "
            "`python -m ascendd.preflight.runbook_pages docs/runbooks`.",
            "",
            "| check | title | 名称 | codes |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main(folder: Path) -> None:
    """Write every page into `folder`."""
    for name, text in pages().items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
