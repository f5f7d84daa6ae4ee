"""Settings: what the operator asked for, as the state keeps it so that `resume` does the same."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Dict, Optional


@dataclass(frozen=True)
class Settings:
    """`is_npu`: an NPU host, with the vendor's packages; else a CPU host without them."""

    is_npu: bool
    media: Optional[str] = None
    install_path: str = "/usr/local/Ascend"
    reboots: bool = False
    allows_unverified: bool = False
    instance: Optional[str] = None
    model: Optional[str] = None
    # The vendor's keyring or root certificate, by which signatures of its packages are proven.
    trust: Optional[str] = None

    def to_json(self) -> Dict[str, Any]:
        """Return plain data; Settings(**data) takes it back."""
        return asdict(self)
