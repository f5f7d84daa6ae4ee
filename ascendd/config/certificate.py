"""
The certificate and the key that listen.tls names, read and held to each other before a client meets them.

What a certificate says of its time is read from its DER form (RFC 5280, section 4.1), for which the standard library
has no call.
"""

from __future__ import annotations

import hashlib
import re
import ssl
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from ascendd.config.schema import TlsSection
from ascendd.errors import ConfigError, PermissionMissing

_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_INTEGER, _SEQUENCE, _VERSION = 0x02, 0x30, 0xA0
_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18


@dataclass(frozen=True)
class Certificate:
    """One certificate: the SHA-256 of its DER form, and the span in which it counts (Unix seconds)."""

    digest: bytes
    not_before_unix_s: float
    not_after_unix_s: float


def read_chain(path: Path) -> list[Certificate]:
    """
    Return the certificates of the PEM file `path` in their order, the server's own first.

    Raises ConfigError for a file that is missing or holds none, PermissionMissing where it cannot be read.
    """
    blocks = _BLOCK.findall(_read("cert_file", path))
    if not blocks:
        raise ConfigError(
            f"listen.tls.cert_file: {path} holds no certificate",
            remedy="Name a PEM file with `-----BEGIN CERTIFICATE-----`: the server's own first, then intermediates.",
            path=str(path),
        )
    found = []
    for number, block in enumerate(blocks, 1):
        try:
            der = ssl.PEM_cert_to_DER_cert(block.decode("ascii"))
            not_before, not_after = _validity(der)
        except (ValueError, IndexError) as error:
            text = f"listen.tls.cert_file: {path}: certificate {number} cannot be read: {error}"
            raise ConfigError(text, path=str(path)) from None
        found.append(Certificate(hashlib.sha256(der).digest(), not_before, not_after))
    return found


def open_pair(tls: TlsSection) -> tuple[ssl.SSLContext, Certificate]:
    """
    Return a server's context with the files of `tls`, and the server's certificate, whatever its time.

    Raises ConfigError with the file that is wrong, PermissionMissing where one cannot be read.
    """
    cert_file, key_file = Path(tls.cert_file), Path(tls.key_file)
    certificate = read_chain(cert_file)[0]
    key = _read("key_file", key_file)
    where = f"listen.tls.key_file: {key_file}"
    if b"PRIVATE KEY-----" not in key:
        raise ConfigError(
            f"{where} holds no private key",
            remedy="Name the PEM file with `-----BEGIN PRIVATE KEY-----` that belongs to the certificate.",
            path=str(key_file),
        )
    if b"ENCRYPTED" in key:
        raise ConfigError(
            f"{where} is encrypted, and at a start nobody is there to type its password",
            remedy="Write it without one, mode 0640, group of the service: `openssl pkey -in KEY -out NEW`.",
            path=str(key_file),
        )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    try:
        # With a password, even an empty one, OpenSSL never asks a terminal.
        context.load_cert_chain(cert_file, key_file, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"{where} does not belong to the certificate in {cert_file}",
                remedy="Name the key that the certificate was made for.",
                path=str(key_file),
            ) from None
        raise ConfigError(
            f"listen.tls: {cert_file} and {key_file} cannot be used: {error.reason or error}", path=str(cert_file)
        ) from None
    return context, certificate


def check_pair(tls: TlsSection, now_unix_s: float | None = None) -> None:
    """Raise as `open_pair` does, and ConfigError for a certificate of the chain that does not count at this time."""
    open_pair(tls)
    now = time.time() if now_unix_s is None else now_unix_s
    path = Path(tls.cert_file)
    for number, certificate in enumerate(read_chain(path), 1):
        which = f"listen.tls.cert_file: {path}" + (f": certificate {number} of the chain" if number > 1 else "")
        if now > certificate.not_after_unix_s:
            raise ConfigError(
                f"{which} expired at {when(certificate.not_after_unix_s)}",
                remedy="Put a renewed certificate and its key there, or correct the clock of this host.",
                path=str(path),
            )
        if now < certificate.not_before_unix_s:
            raise ConfigError(
                f"{which} counts from {when(certificate.not_before_unix_s)} only",
                remedy="Wait until then, put another certificate there, or correct the clock of this host.",
                path=str(path),
            )


def when(unix_s: float) -> str:
    """Return a time as operators read it."""
    return datetime.fromtimestamp(unix_s, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _read(key: str, path: Path) -> bytes:
    where = f"listen.tls.{key}: {path}"
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        text = "does not exist"
        raise ConfigError(f"{where} {text}", remedy="Correct the path, or remove listen.tls.", path=str(path)) from None
    except IsADirectoryError:
        raise ConfigError(f"{where} is a folder; name a PEM file", path=str(path)) from None
    except OSError as error:
        raise PermissionMissing(
            f"{where} cannot be read: {error.strerror}",
            remedy=f"Let the service's group read it: chgrp ascendd {path} && chmod 0640 {path}",
            path=str(path),
        ) from error


def _validity(der: bytes) -> tuple[float, float]:
    """Return the span of a certificate. Raises ValueError or IndexError for what is none."""
    at, end = _enter(der, 0, _SEQUENCE)  # Certificate
    if end != len(der):
        raise ValueError("it is cut short")
    at, _ = _enter(der, at, _SEQUENCE)  # TBSCertificate
    if der[at] == _VERSION:
        _, at = _enter(der, at, _VERSION)
    for tag in (_INTEGER, _SEQUENCE, _SEQUENCE):  # serial number, signature, issuer
        _, at = _enter(der, at, tag)
    at, _ = _enter(der, at, _SEQUENCE)
    not_before, at = _time(der, at)
    not_after, _ = _time(der, at)
    return not_before, not_after


def _enter(der: bytes, at: int, tag: int) -> tuple[int, int]:
    """Return where the content of the element at `at` begins and ends. Raises ValueError unless it is a `tag`."""
    if der[at] != tag:
        raise ValueError("it is no X.509 certificate")
    size, begin = der[at + 1], at + 2
    if size & 0x80:
        num_bytes = size & 0x7F
        size, begin = int.from_bytes(der[begin : begin + num_bytes], "big"), begin + num_bytes
    return begin, begin + size


def _time(der: bytes, at: int) -> tuple[float, int]:
    """Return the time at `at` (Unix seconds) and where the next element begins."""
    tag = der[at]
    begin, end = _enter(der, at, _GENERALIZED_TIME if tag == _GENERALIZED_TIME else _UTC_TIME)
    text = der[begin:end].decode("ascii")
    if tag == _UTC_TIME:
        # Two digits of a year: below 50 they are of this century.
        text = ("20" if text < "50" else "19") + text
    moment = datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=timezone.utc)
    return moment.timestamp(), end
