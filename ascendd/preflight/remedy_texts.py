"""
The sentences that checks may tell an operator, read from their source. Pure.

A remedy is a sentence that begins with a capital letter and ends with a full stop; nothing else in a check looks so,
docstrings aside. Findings are among its other texts of several words. What is put in at run time is `{}`.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Dict, Iterator, List, Set, Tuple

PLACE = "{}"
# What begins the commands that remedies show.
_COMMAND = re.compile(
    r"(?:npu-smi (?:info -|info$|set)|hccn_tool -i|ps -o|python3 -m|for i in|/opt/ascendd/|ascendd plan|"
    r"(?:ls|dmesg|cat|kill|grep|df|du|ss|sysctl|tail|journalctl|usermod|fuser|chronyc|lspci|lsmod|ulimit|lscpu|swapon|"
    r"id|msnpureport|getent) |ip -br|ascendd cluster |systemctl (?:show|reboot))"
)


def templates(source: str) -> List[str]:
    """Return the remedies in the source of a module, in the order of their lines."""
    tree = ast.parse(source)
    skipped = _docstrings(tree)
    found: Dict[str, None] = {}
    for node, text in _texts(tree, skipped):
        if re.match(r"[A-Z`{]", text) and text.endswith(".") and " " in text and id(node) not in skipped:
            found[text] = None
    return list(found)


def findings(source: str) -> List[str]:
    """Return texts of several words that are no remedies and no shown commands: findings, titles, words of tools."""
    tree = ast.parse(source)
    skipped = _docstrings(tree)
    found: Dict[str, None] = {}
    for node, text in _texts(tree, skipped):
        is_remedy = re.match(r"[A-Z`{]", text) and text.endswith(".")
        has_words = " " in text and re.search(r"[A-Za-z]{2}", text.replace(PLACE, "")) is not None
        if id(node) not in skipped and has_words and not is_remedy and _COMMAND.match(text) is None:
            found[text] = None
    return list(found)


def codes(source: str) -> List[str]:
    """Return the codes of runbooks that the source of a module names."""
    return sorted(set(re.findall(r"ASD-[A-Z]\d\d", source)))


def of_folder(folder: Path) -> Dict[str, List[str]]:
    """Return the remedies by module name for every module of a folder."""
    return {path.stem: templates(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.py"))}


def _docstrings(tree: ast.Module) -> Set[int]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, (ast.Constant, ast.JoinedStr)):
            found.add(id(node.value))
    return found


def _texts(tree: ast.Module, skipped: Set[int]) -> Iterator[Tuple[ast.AST, str]]:
    inside: Set[int] = set()
    for node in sorted(
        (n for n in ast.walk(tree) if isinstance(n, (ast.Constant, ast.JoinedStr))),
        key=lambda n: (n.lineno, n.col_offset),
    ):
        if isinstance(node, ast.JoinedStr):
            inside.update(id(part) for value in node.values for part in ast.walk(value))
            yield node, "".join(_part(value) for value in node.values)
    for constant in ast.walk(tree):
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str) and id(constant) not in inside:
            yield constant, constant.value


def _part(value: ast.expr) -> str:
    return str(value.value) if isinstance(value, ast.Constant) else PLACE
