"""
Package signatures: those that the vendor ships beside its packages, proven by what the operator trusts.

    X.run.asc            OpenPGP, by gpgv and a keyring (binary, or armoured as vendors publish it)
    X.run.cms, X.run.crl CMS with a list of revoked certificates, by openssl and a root certificate in PEM

Whom to trust is never taken from the media: who could change a package there could change a key beside it.
"""

from __future__ import annotations

import base64
import binascii
import re
import subprocess
import tempfile
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

from .host import Host
from .media import Media

_ARMOUR = re.compile(rb"-----BEGIN PGP PUBLIC KEY BLOCK-----(.*?)-----END PGP PUBLIC KEY BLOCK-----", re.DOTALL)
_PEM = b"-----BEGIN "
_LIMIT_S = 1800


def judge_signatures(host: Host, media: Media, trust: Optional[str]) -> Tuple[List[str], List[str]]:
    """
    Return what is to be said of the signatures of the packages, and why packages must not be used.

    `trust` is the operator's file, a keyring or root certificates. Without one nothing can be proven, and that is said.
    """
    if not media.packages:
        return [], []
    if trust is None:
        signed = [package.name for package in media.packages if _signature(package.path) is not None]
        if not signed:
            return [], []
        return [f"the signatures beside {', '.join(signed)} are not checked: name the vendor's keys by --trust"], []
    try:
        anchor = Path(trust).read_bytes()
    except OSError as error:
        return [], [f"--trust {trust} cannot be read: {error.strerror}; it is the vendor's keyring or root certificate"]
    notes, problems = [], []
    for package in media.packages:
        signature = _signature(package.path)
        if signature is None:
            notes.append(f"{package.name} has no signature beside it; only its checksum is proven")
            continue
        why = _verify(host, package.path, signature, anchor)
        if why is None:
            notes.append(f"{package.name} is signed by whom {trust} names")
        else:
            problems.append(f"{package.name} is not proven by {signature.name} and {trust}: {why}")
    return notes, problems


def _signature(path: str) -> Optional[Path]:
    """Return the file with the signature of a package, None without one."""
    return next((Path(path + ending) for ending in (".asc", ".cms") if Path(path + ending).exists()), None)


def _verify(host: Host, path: str, signature: Path, anchor: bytes) -> Optional[str]:
    """Return why a signature proves nothing, None for a good one."""
    is_pgp = signature.suffix == ".asc"
    has_certificates = b"-----BEGIN CERTIFICATE-----" in anchor
    if is_pgp is has_certificates:
        wanted, there = ("an OpenPGP keyring", "certificates") if is_pgp else ("a root certificate in PEM", "none")
        return f"it needs {wanted}, and the file has {there}"
    tool = host.find("gpgv" if is_pgp else "openssl")
    if tool is None:
        return f"this host has no {'gpgv' if is_pgp else 'openssl'}"
    with tempfile.TemporaryDirectory() as folder:
        try:
            argv = (_pgp if is_pgp else _cms)(Path(folder), path, signature, anchor)
            done = subprocess.run([tool, *argv], env=host.environ, capture_output=True, timeout=_LIMIT_S, check=False)
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            return str(error)
    said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
    return None if done.returncode == 0 else f"{Path(tool).name} ended with status {done.returncode}: {said[-300:]}"


def _pgp(folder: Path, path: str, signature: Path, anchor: bytes) -> Sequence[str]:
    """Return the arguments of gpgv, which reads no armoured keys."""
    blocks = _ARMOUR.findall(anchor)
    (folder / "keyring.gpg").write_bytes(b"".join(map(_dearmour, blocks)) if blocks else anchor)
    return ("--homedir", str(folder), "--keyring", str(folder / "keyring.gpg"), str(signature), path)


def _cms(folder: Path, path: str, signature: Path, anchor: bytes) -> Sequence[str]:
    """Return the arguments of openssl; a list of revoked certificates beside the signature counts."""
    revoked = signature.with_suffix(".crl")
    check: Tuple[str, ...] = ()
    if revoked.exists():
        text = revoked.read_bytes()
        if not text.startswith(_PEM):
            text = b"-----BEGIN X509 CRL-----\n" + base64.encodebytes(text) + b"-----END X509 CRL-----\n"
        anchor, check = anchor + b"\n" + text, ("-crl_check",)
    (folder / "roots.pem").write_bytes(anchor)
    form = "PEM" if signature.read_bytes()[: len(_PEM)] == _PEM else "DER"
    return (
        "cms", "-verify", "-binary", "-inform", form, "-in", str(signature), "-content", path,
        "-CAfile", str(folder / "roots.pem"), "-purpose", "any", *check, "-out", "/dev/null",
    )  # fmt: skip


def _dearmour(block: bytes) -> bytes:
    """Return the keys of one armoured block. Raises ValueError where it is none."""
    # Headers end with an empty line; the line that begins with `=` is a checksum of the old days.
    lines = block.replace(b"\r", b"").partition(b"\n\n")[2].split(b"\n")
    try:
        return base64.b64decode(b"".join(line for line in lines if not line.startswith(b"=")), validate=True)
    except binascii.Error as error:
        raise ValueError(f"the armoured keyring cannot be read: {error}") from error
