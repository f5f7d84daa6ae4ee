"""Keys."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import structlog

from ascendd.api.auth import Authenticator, read_key_file
from ascendd.config.credentials import Credential, digest_of, new_key, parse_line
from ascendd.errors import ActionForbidden, AuthenticationFailed, ConfigError, PermissionMissing

KEY = "k-3f9a77"


@pytest.fixture
def guard() -> Authenticator:
    """One that knows two keys."""
    return Authenticator([Credential("other", digest_of("other")), Credential("mine", digest_of(KEY))])


@pytest.mark.parametrize("header", [f"Bearer {KEY}", f"bearer {KEY}", f"BEARER   {KEY} ", "Bearer other"])
def test_known_key_passes(guard: Authenticator, header: str) -> None:
    """B74: any key of the file passes; the scheme's case does not matter."""
    found = guard.check("/v1/models", header)

    assert found is not None
    assert found.name == ("other" if "other" in header else "mine")
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
    assert guard._credentials is not None
    assert all(len(known.digest) == 32 for known in guard._credentials)


def test_file_holds_keys_and_comments(tmp_path: Path) -> None:
    """One key a line; blank lines and comments are left out."""
    path = tmp_path / "keys"
    path.write_text(f"# team a\n{KEY}\n\n  second  # until May\n", encoding="utf-8")
    path.chmod(0o600)

    assert [(item.name, item.digest) for item in read_key_file(path)] == [
        ("line-2", digest_of(KEY)),
        ("line-4", digest_of("second")),
    ]


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

    assert [item.digest for item in keys] == [digest_of(KEY)]
    assert [line["event"] for line in lines] == (["api.key_file_exposed"] if warned else [])
    assert KEY not in repr(lines)


def test_scope_decides_where_a_key_opens() -> None:
    """A key for inference loads no adapters, and one for administration asks no model; other paths follow inference."""
    keys = [Credential(scope, digest_of(scope), frozenset({scope})) for scope in ("infer", "admin")]
    guard = Authenticator(keys)

    assert guard.check("/v1/models", "Bearer infer") is keys[0]
    assert guard.check("/v1/load_lora_adapter", "Bearer admin") is keys[1]
    for path, key in (("/v1/load_lora_adapter", "infer"), ("/v1/chat/completions", "admin"), ("/nothing", "admin")):
        with pytest.raises(ActionForbidden, match="has no scope"):
            guard.check(path, f"Bearer {key}")


def test_reload_takes_new_keys_and_keeps_the_old_ones_for_a_broken_file(tmp_path: Path) -> None:
    """A key that was added opens after the reload, one that was revoked does not; a broken file changes nothing."""
    path = tmp_path / "keys"
    path.write_text("first\n", encoding="utf-8")
    guard = Authenticator.from_file(str(path))
    path.write_text("second\n", encoding="utf-8")
    guard.reload(str(path))
    path.write_text("sha256:no\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="line 1"):
        guard.reload(str(path))

    assert guard.check("/v1/models", "Bearer second") is not None
    with pytest.raises(AuthenticationFailed):
        guard.check("/v1/models", "Bearer first")


def test_line_of_a_credential_is_read_back() -> None:
    """What is written for a key is what is read, and holds no key."""
    key = new_key()
    made = Credential("team-a", digest_of(key), frozenset({"infer"}), 4, 6000)

    assert parse_line(made.line(), 1) == made
    assert key not in made.line()
    assert len(key) > 40


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("sha256:12 name=a", "64 hexadecimal"),
        ("two words", "a key alone"),
        (f"sha256:{'0' * 64} scopes=all", "must be of: infer, metrics, admin"),
        (f"sha256:{'0' * 64} name=a/b", "letters, digits"),
        (f"sha256:{'0' * 64} max_concurrency=0", "whole number from 1"),
        (f"sha256:{'0' * 64} tokens_per_minute=-5", "whole number from 1"),
        (f"sha256:{'0' * 64} rate=5", "is not known"),
    ],
)
def test_bad_line_is_named(line: str, words: str) -> None:
    """A line that cannot be read is refused with its rule."""
    with pytest.raises(ValueError, match=words):
        parse_line(line, 1)
