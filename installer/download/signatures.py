"""Signatures: whether who signs a repository or a vendor's package has signed this one, by gpgv and a keyring."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, Optional

from ascendd.errors import HostError

from .fetch import shown

_LIMIT_S = 120
_CLEAR = "-----BEGIN PGP SIGNED MESSAGE-----"


@dataclass
class Signatures:
    """
    Checks with one keyring; `gpgv` is the path of the program. `verdicts` says of each URL what was found.

    Without a program or a keyring nothing can be checked, and the verdict says so; a bad signature is an error always.
    """

    gpgv: Optional[str]
    keyring: Optional[str]
    verdicts: Dict[str, str] = field(default_factory=dict)

    def signed_text(self, url: str, document: bytes) -> str:
        """Return what is signed within a clear-signed document, judged. Raises HostError for a bad signature."""
        text = document.decode("utf-8", "replace")
        if not text.startswith(_CLEAR):
            self.verdicts[shown(url)] = "not signed"
            return text
        # gpgv writes out what the signature covers, so that nothing beside it is believed.
        signed = self._gpgv(url, document, None)
        if signed is not None:
            return signed.decode("utf-8", "replace")
        body = text.partition("\n\n")[2].partition("\n-----BEGIN PGP SIGNATURE-----")[0]
        return "\n".join(line[2:] if line.startswith("- ") else line for line in body.splitlines())

    def check(self, url: str, document: bytes, signature: Optional[bytes]) -> None:
        """Judge a document with its detached signature. Raises HostError for a bad one."""
        if signature is None:
            self.verdicts[shown(url)] = "not signed"
        else:
            self._gpgv(url, document, signature)

    def _gpgv(self, url: str, document: bytes, signature: Optional[bytes]) -> Optional[bytes]:
        if self.gpgv is None or self.keyring is None:
            lack = "gpgv" if self.gpgv is None else "keyring"
            self.verdicts[shown(url)] = f"signature not checked: this machine has no {lack} for it"
            return None
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "document").write_bytes(document)
            files = ["--output", "-", "document"]
            if signature is not None:
                (Path(folder) / "signature").write_bytes(signature)
                files = ["signature", "document"]
            done = subprocess.run(
                [self.gpgv, "--keyring", str(Path(self.keyring).resolve()), *files],
                cwd=folder,
                capture_output=True,
                timeout=_LIMIT_S,
                check=False,
            )
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", "replace").strip()[-300:]
            raise HostError(
                f"{shown(url)} is not signed by a key of {self.keyring}: {said}",
                remedy="Name the keyring of its signer, or another mirror; do not install from this one.",
            )
        self.verdicts[shown(url)] = f"signed by a key of {self.keyring}"
        return done.stdout
