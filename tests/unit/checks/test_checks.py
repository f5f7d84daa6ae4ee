"""The set of checks: one file each, ids and classes named alike, requirements that exist, remedies with a runbook."""

import ast
import re
from pathlib import Path

import ascendd.checks
import pytest

from ascendd.errors import walk_errors
from ascendd.preflight.check import Check
from ascendd.preflight.discover import find_checks, in_order
from ascendd.preflight.gate import GATE_CHECKS

FOLDER = Path(ascendd.checks.__file__).parent
RUNBOOKS = Path(__file__).resolve().parents[3] / "docs" / "runbooks"
CHECKS = find_checks()


def test_the_files_of_the_folder_are_the_tuple() -> None:
    """A file that nobody listed would never run."""
    files = {path.stem for path in FOLDER.glob("*.py")} - {"__init__", "__main__"}

    assert files == {check.__module__.rpartition(".")[2] for check in CHECKS}
    assert len(files) == len(CHECKS)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_a_checks_file_class_and_id_have_one_name(check: type[Check]) -> None:
    """driver_version.py holds DriverVersion with the id driver-version."""
    stem = check.__module__.rpartition(".")[2]

    assert check.id == stem.replace("_", "-")
    assert check.__name__ == "".join(word.capitalize() for word in stem.split("_"))
    assert check.title
    assert 0 < check.timeout_s <= 120


def test_requirements_and_the_gate_name_checks_that_exist() -> None:
    """A misspelt requirement would silently never hold."""
    ids = {check.id for check in CHECKS}

    assert {required for check in CHECKS for required in check.requires} <= ids
    assert set(GATE_CHECKS) <= ids
    assert len(in_order(CHECKS)) == len(CHECKS)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_every_remedy_names_a_code_of_the_error_tree(path: Path) -> None:
    """Each code in a check belongs to an error class or to a diagnosis, and has its page."""
    codes = {error.code for error in walk_errors()} | {page.stem for page in RUNBOOKS.glob("ASD-G*.md")}

    assert set(re.findall(r"ASD-[A-Z]\d\d", path.read_text())) <= codes


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_checks_are_imported_under_one_name_only(path: Path) -> None:
    """Siblings are imported relatively: `import checks` would make a second copy of every module."""
    modules = {
        node.module or ""
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and not node.level
    }

    assert not {module for module in modules if module.split(".")[0] == "checks" or module.startswith("ascendd.checks")}
