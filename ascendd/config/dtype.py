"""Names of dtypes: one canonical form each, and the short spellings that people know from other servers."""

from __future__ import annotations

ALIASES = {"fp32": "float32", "float": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16"}


def canonical_dtype(name: str) -> str:
    """Return the canonical form of `name`; what is no alias comes back as it is."""
    return ALIASES.get(name, name)
