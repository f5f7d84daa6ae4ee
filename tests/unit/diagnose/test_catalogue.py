"""The table: ids and codes are one to one, every row has its texts and its runbook, every rule its signs."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from ascendd.diagnose.catalogue import Action, load_catalogue
from ascendd.diagnose.runbook_page import pages
from ascendd.errors import RequestError, walk_errors

ROOT = Path(__file__).resolve().parent.parent.parent.parent
RUNBOOKS = ROOT / "docs" / "runbooks"
CATALOGUE = load_catalogue()
ROWS = list(CATALOGUE.diagnoses.values())


def test_each_code_belongs_to_one_diagnosis() -> None:
    """No two ids share a code and no two rows an id, so the table reads in both directions."""
    assert [code for code, count in Counter(row.code for row in ROWS).items() if count > 1] == []
    assert {key: row.id for key, row in CATALOGUE.diagnoses.items()} == {row.id: row.id for row in ROWS}
    assert all(re.fullmatch(r"[a-z]+\.[a-z0-9_]+", row.id) for row in ROWS)


def test_each_code_of_the_daemon_has_a_diagnosis() -> None:
    """An error of the daemon itself, unless it answers one request, is found in its log under one id."""
    codes = {cls.code for cls in walk_errors() if cls.__module__.startswith("ascendd.")}
    requests = {cls.code for cls in walk_errors(RequestError)}

    assert codes - requests <= {row.code for row in ROWS}
    assert requests & {row.code for row in ROWS} == set()


def test_every_case_has_a_row(faults) -> None:
    """The ids of the recorded faults are ids of the table."""
    assert {fault["code"] for fault in faults} - set(CATALOGUE.diagnoses) == set()


@pytest.mark.parametrize("row", ROWS, ids=[row.id for row in ROWS])
def test_row_has_its_texts_and_its_runbook(row) -> None:
    """Texts are sentences, the source is named, the runbook is there and titled with the code."""
    assert row.title
    assert row.cause.endswith(".")
    assert row.remedy.endswith(".")
    assert row.check
    assert row.source
    assert (ROOT / row.runbook).read_text(encoding="utf-8").startswith(f"# {row.code} ")


def test_no_runbook_of_a_diagnosis_is_stale() -> None:
    """The pages written from the table are those in docs/runbooks, word for word, and no other page is of the family."""
    expected = pages(CATALOGUE)
    family = {path.name for path in RUNBOOKS.glob("ASD-G*.md")}

    assert {name for name in expected if name.startswith("ASD-G")} == family
    stale = [name for name, text in expected.items() if (RUNBOOKS / name).read_text(encoding="utf-8") != text]
    assert stale == [], "run `python -m ascendd.diagnose.runbook_page docs/runbooks`"


def test_rules_and_signs_know_each_other() -> None:
    """Every sign that a rule names exists, every sign is used, every refined id exists."""
    named = {name.split(".")[0] for rule in CATALOGUE.rules for name in rule.when}
    refined = {name for rule in CATALOGUE.rules for name in rule.refines}

    assert named == {sign.name for sign in CATALOGUE.signs}
    assert refined <= set(CATALOGUE.diagnoses)


@pytest.mark.parametrize("sign", [*CATALOGUE.signs, *CATALOGUE.wrappers], ids=lambda sign: sign.name)
def test_needles_can_be_found(sign) -> None:
    """Needles are lower case, as the block is when it is searched, and long enough to be rare."""
    assert sign.needles
    assert all(needle == needle.lower() and len(needle) >= 3 for needle in sign.needles)


def test_every_action_says_what_the_daemon_does() -> None:
    """Each action has a sentence."""
    assert all(len(action.text) > 20 for action in Action)
