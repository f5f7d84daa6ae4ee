"""Keys."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import structlog

from ascendd.api.auth import Authenticator, read_key_file
from ascendd.errors import AuthenticationFailed, ConfigError, PermissionMissing

KEY = "k-3f9a77"


@pytest.fixture
def guard() -> Authenticator:
    """One that knows two keys."""
    return Authenticator(["other", KEY])


@pytest.mark.parametrize("header", [f"Bearer {KEY}", f"bearer {KEY}", f"BEARER   {KEY} ", "Bearer other"])
def test_known_key_passes(guard: Authenticator, header: str) -> None:
    """B74: any key of the file passes; the scheme's case does not matter."""
    guard.check("/v1/models", header)

    assert not guard.is_self_test(header)


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Bearer wrong", f"Basic {KEY}", KEY, f"Bearer {KEY}x", "Bearer \udce9"]
)
@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions", "/metrics", "/nothing", "/livez/", "//livez"])
def test_anything_else_is_refused_everywhere(guard: Authenticator, path: str, header: str | None) -> None:
    """B72, B74: all paths but the open ones need a key, unknown paths too."""
    with pytest.raises(AuthenticationFailed) as caught:
        guard.check(path, header)

    assert KEY not in caught.value.message


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health"])
def test_probes_need_no_key(guard: Authenticator, path: str) -> None:
    """The three probes are open."""
    guard.check(path, None)

    assert Authenticator(None).check("/v1/models", None) is None


def test_one_time_key_ends_with_its_block(guard: Authenticator) -> None:
    """The self-test's key is known only inside its block, and recognised as such."""
    with guard.one_time_key() as key:
        guard.check("/v1/completions", f"Bearer {key}")
        recognised = guard.is_self_test(f"Bearer {key}")

    assert recognised
    assert not guard.is_self_test(f"Bearer {key}")
    with pytest.raises(AuthenticationFailed):
        guard.check("/v1/completions", f"Bearer {key}")


def test_key_is_not_kept(guard: Authenticator) -> None:
    """B73: only digests stay in memory."""
    assert KEY not in repr(vars(guard))
    assert KEY.encode() not in b"".join(guard._digests or [])


def test_file_holds_keys_and_comments(tmp_path: Path) -> None:
    """One key a line; blank lines and comments are left out."""
    path = tmp_path / "keys"
    path.write_text(f"# team a\n{KEY}\n\n  second  # until May\n", encoding="utf-8")
    path.chmod(0o600)

    assert read_key_file(path) == [KEY, "second"]


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [(None, ConfigError, "does not exist"), ("# none yet\n", ConfigError, "holds no key")],
    ids=["missing", "empty"],
)
def test_file_without_keys_is_refused(tmp_path: Path, text: str | None, error: type[Exception], words: str) -> None:
    """A file that is missing or empty stops the start: it must not mean `everyone`."""
    path = tmp_path / "keys"
    if text is not None:
        path.write_text(text, encoding="utf-8")

    with pytest.raises(error, match=words):
        read_key_file(path)


def test_unreadable_file_names_the_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that this user cannot open is PermissionMissing with the path."""
    path = tmp_path / "keys"
    path.write_text(KEY, encoding="utf-8")

    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(Path, "read_text", refuse)

    with pytest.raises(PermissionMissing, match=str(path)):
        read_key_file(path)


@pytest.mark.parametrize(("mode", "warned"), [(0o644, True), (0o640, False), (0o600, False)])
def test_file_that_everyone_reads_is_warned_of(tmp_path: Path, mode: int, warned: bool) -> None:
    """A key file open to all users is used, and said so with the remedy, without the key."""
    path = tmp_path / "keys"
    path.write_text(KEY, encoding="utf-8")
    path.chmod(mode)
    with structlog.testing.capture_logs() as lines:
        keys = read_key_file(path)

    assert keys == [KEY]
    assert [line["event"] for line in lines] == (["api.key_file_exposed"] if warned else [])
    assert KEY not in repr(lines)


def test_reloaded_keys_replace_the_old_ones(tmp_path: Path) -> None:
    """A key that was taken out is refused at once; a file that cannot be read leaves all keys as they were."""
    file = tmp_path / "keys"
    file.write_text("first\n")
    file.chmod(0o600)
    made = Authenticator.from_file(str(file))
    file.write_text("second\n")
    made.reload(str(file))

    made.check("/v1/models", "Bearer second")
    with pytest.raises(AuthenticationFailed):
        made.check("/v1/models", "Bearer first")

    file.write_text("# nobody\n")
    with pytest.raises(ConfigError, match="holds no key"):
        made.reload(str(file))
    made.check("/v1/models", "Bearer second")
