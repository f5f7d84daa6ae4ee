"""
The file that listen.api_key_file names: one key a line, `#` starts a comment.

    sha256:HEX name=NAME scopes=infer,admin max_concurrency=N tokens_per_minute=N     as `ascendd key add` writes it
    KEY                                                                                a key in clear, with all scopes

Keys are made of 256 random bits, so that a plain SHA-256 cannot be turned back.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass

SCOPES = ("infer", "metrics", "admin")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
_MOST = 10**12


@dataclass(frozen=True)
class Credential:
    """One key; a limit that is None does not bound."""

    name: str
    digest: bytes
    scopes: frozenset[str] = frozenset(SCOPES)
    max_concurrency: int | None = None
    tokens_per_minute: int | None = None

    def line(self) -> str:
        """Return the line of the file."""
        words = [f"sha256:{self.digest.hex()}", f"name={self.name}", f"scopes={','.join(sorted(self.scopes))}"]
        for key in ("max_concurrency", "tokens_per_minute"):
            if (value := getattr(self, key)) is not None:
                words.append(f"{key}={value}")
        return " ".join(words)


def digest_of(key: str) -> bytes:
    """Return what is kept of `key`."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def new_key() -> str:
    """Return a fresh key."""
    return f"ask-{secrets.token_urlsafe(32)}"


def check_name(name: str) -> str:
    """Return `name`. Raises ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"the name {name[:64]!r} must be 1 to 64 letters, digits, `_`, `.`, `@` or `-`")
    return name


def check_scopes(text: str) -> frozenset[str]:
    """Return the scopes in `text`, separated by commas. Raises ValueError."""
    scopes = frozenset(text.split(","))
    if not scopes <= set(SCOPES):
        raise ValueError(f"the scopes {text[:64]!r} must be of: {', '.join(SCOPES)}")
    return scopes


def parse_line(line: str, number: int) -> Credential | None:
    """Return the credential of line number `number`, None where it has none. Raises ValueError without the key."""
    words = line.split("#", 1)[0].split()
    if not words:
        return None
    match = _DIGEST.fullmatch(words[0])
    if match is None:
        if words[0].startswith("sha256:") or len(words) > 1:
            raise ValueError("it must be a key alone, or `sha256:` with 64 hexadecimal digits and its settings")
        return Credential(f"line-{number}", digest_of(words[0]))
    settings: dict[str, str] = dict(word.partition("=")[::2] for word in words[1:])
    if unknown := sorted(settings.keys() - {"name", "scopes", "max_concurrency", "tokens_per_minute"}):
        raise ValueError(f"{unknown[0][:64]!r} is not known; known: name, scopes, max_concurrency, tokens_per_minute")
    return Credential(
        check_name(settings.get("name", f"line-{number}")),
        bytes.fromhex(match[1]),
        check_scopes(settings.get("scopes", "infer")),
        _limit("max_concurrency", settings.get("max_concurrency")),
        _limit("tokens_per_minute", settings.get("tokens_per_minute")),
    )


def _limit(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:20]) <= _MOST:
        raise ValueError(f"{name} is {text[:32]!r}; it must be a whole number from 1")
    return int(text)
