"""Certificates for tests, made by openssl: for 127.0.0.1 and localhost, vouching for themselves."""

from __future__ import annotations

import base64
import re
import subprocess
from pathlib import Path

_BLOCK = re.compile(r"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
_UTC_TIME = re.compile(rb"\x17\x0d(\d{12}Z)")


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Write NAME.crt and NAME.key into `folder`, good for ten days, and return their paths."""
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-days", "10",
            "-keyout", str(key), "-out", str(cert),
        ],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    key.chmod(0o640)
    return cert, key


def let_expire(cert: Path) -> None:
    """Write an end of long ago into `cert`; its signature is no longer right, and nobody who serves it looks at that."""
    match = _BLOCK.search(cert.read_text())
    assert match is not None
    der = base64.b64decode(match[1])
    begin, end = _UTC_TIME.findall(der)[:2]
    der = der.replace(begin, b"200101000000Z", 1).replace(end, b"200201000000Z", 1)
    body = base64.encodebytes(der).decode()
    cert.write_text(f"-----BEGIN CERTIFICATE-----\n{body}-----END CERTIFICATE-----\n")
