"""Mask what must not leave the host in a support archive: keys, tokens, passwords, credentials in addresses. Pure."""

from __future__ import annotations

import re

MASK = "***"
_NAME = r"[\w.-]*(?:key|token|passw(?:or)?d|secret|credential|authori[sz]ation|cookie)[\w.-]*"
_RULES = (
    # KEY=value, key: value, "key": "value"; up to the end of the word or the quoted text.
    re.compile(
        rf"(?i)(?P<before>\b{_NAME}[\"']?\s*[=:]\s*)(?P<secret>\"[^\"\n]*\"|'[^'\n]*'|[^\s,;}}]+(?: [^\s,;}}]+)?)"
    ),
    re.compile(r"(?i)(?P<before>\b(?:bearer|basic)\s+)(?P<secret>[\w.~+/=-]{6,})"),
    re.compile(r"(?P<before>\w://[^\s/:@]*:)(?P<secret>[^\s/@]+)(?=@)"),
    re.compile(r"(?P<before>\b)(?P<secret>(?:sk|hf|ghp|glpat)[-_][\w-]{8,})"),
)
_PEM = re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
# Names that only look like secrets, and whose values are needed to help.
_HARMLESS = re.compile(
    r"(?i)(?:num_|max_|per_|_per|tokens|tokenizer|token_ids|api_key_file|keyword|keymap|monkey|keyring)"
)


def mask(text: str) -> str:
    """Return `text` with the value of everything that looks like a secret replaced by `***`."""
    text = _PEM.sub(rf"\1 {MASK} \2", text)
    for rule in _RULES:
        text = rule.sub(_masked, text)
    return text


def _masked(match: re.Match[str]) -> str:
    return match[0] if _HARMLESS.search(match["before"]) else f"{match['before']}{MASK}"
