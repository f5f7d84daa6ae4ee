"""`ascendd key`."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from ascendd.cli.app import main
from ascendd.config.credentials import digest_of
from ascendd.config.key_file import read_credentials


def test_add_list_revoke(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A key is shown once and kept as a hash in a file of mode 0600; it is listed, and gone once revoked."""
    path = tmp_path / "keys"
    file = ["--file", str(path)]
    assert main(["key", "add", "team-a", *file, "--scopes", "infer,admin", "--max-concurrency", "3"]) == 0
    key = capsys.readouterr().out.strip()
    assert main(["key", "add", "team-b", *file, "--tokens-per-minute", "600"]) == 0
    capsys.readouterr()
    assert main(["key", "list", *file, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert main(["key", "revoke", "team-a", *file]) == 0

    assert key not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert listed == [
        {"name": "team-a", "scopes": ["admin", "infer"], "max_concurrency": 3, "tokens_per_minute": None},
        {"name": "team-b", "scopes": ["infer"], "max_concurrency": None, "tokens_per_minute": 600},
    ]
    assert [item.name for item in read_credentials(path)] == ["team-b"]
    assert digest_of(key) not in [item.digest for item in read_credentials(path)]


@pytest.mark.parametrize(
    ("args", "status", "words"),
    [
        (["add", "a/b"], 64, "letters, digits"),
        (["add", "c", "--scopes", "root"], 64, "must be of: infer, metrics, admin"),
        (["add", "a"], 78, "has a key named a"),
        (["revoke", "b"], 78, "has no key named b"),
        (["revoke", "a"], 78, "the last key"),
    ],
)
def test_what_cannot_be_done_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], args: list[str], status: int, words: str
) -> None:
    """Slips leave the file as it is and say what is wrong."""
    path = tmp_path / "keys"
    main(["key", "add", "a", "--file", str(path)])
    before = path.read_text()
    capsys.readouterr()

    assert main(["key", *args, "--file", str(path)]) == status
    assert words in capsys.readouterr().err
    assert path.read_text() == before
