"""Certificate and key of listen.tls: what is wrong with them is told with the file, before a client meets it."""

from __future__ import annotations

import ssl
import subprocess
import time
from pathlib import Path

import pytest
from certificates import let_expire, make_certificate

from ascendd.config.certificate import check_pair, open_pair, read_chain
from ascendd.config.load import convert
from ascendd.config.schema import TlsSection
from ascendd.errors import AscenddError, ConfigError, ConfigInvalid, PermissionMissing
from ascendd.supervisor.inputs import check_inputs

DAY_S = 86_400.0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate and its key."""
    return make_certificate(tmp_path_factory.mktemp("tls"), "good")


def section(cert: Path, key: Path) -> TlsSection:
    return TlsSection(cert_file=str(cert), key_file=str(key))


def test_a_good_pair_is_read(made: tuple[Path, Path]) -> None:
    """The span is what openssl wrote into it, and the digest is that of the certificate which is served."""
    before = time.time()
    context, certificate = open_pair(section(*made))
    check_pair(section(*made))
    seconds = ssl.cert_time_to_seconds(_openssl(made[0], "-enddate"))

    assert isinstance(context, ssl.SSLContext)
    assert certificate.not_after_unix_s == seconds
    assert abs(certificate.not_before_unix_s - before) < DAY_S
    assert certificate.digest.hex() == _openssl(made[0], "-fingerprint", "-sha256").replace(":", "").lower()


@pytest.mark.parametrize(("offset_days", "words"), [(11, "expired at"), (-1, "counts from")])
def test_a_certificate_has_its_time(made: tuple[Path, Path], offset_days: float, words: str) -> None:
    """After its end and before its begin it is refused, with the file and the moment."""
    with pytest.raises(ConfigError, match=words) as caught:
        check_pair(section(*made), time.time() + offset_days * DAY_S)

    assert str(made[0]) in caught.value.message
    assert "UTC" in caught.value.message


def test_an_expired_one_stops_the_start(tmp_path: Path) -> None:
    """What the supervisor looks at before a start has the rule, too; a second certificate of the chain is named by number."""
    cert, key = make_certificate(tmp_path, "old")
    fresh = cert.read_text()
    let_expire(cert)
    config = convert({"model": {"path": "/m"}, "listen": {"tls": {"cert_file": str(cert), "key_file": str(key)}}})

    with pytest.raises(ConfigError, match=r"expired at 2020-02-01 00:00:00 UTC"):
        check_inputs(config)
    cert.write_text(fresh + cert.read_text())
    with pytest.raises(ConfigError, match=r"certificate 2 of the chain expired"):
        check_inputs(config)


def test_wrong_files_are_named(made: tuple[Path, Path], tmp_path: Path) -> None:
    """A file that is missing, a folder, no PEM, cut short, encrypted, or of another pair is a ConfigError with its name."""
    cert, key = made
    _, other = make_certificate(tmp_path, "other")
    encrypted, text, cut = tmp_path / "encrypted.key", tmp_path / "text", tmp_path / "cut.crt"
    subprocess.run(
        ["openssl", "pkey", "-in", str(key), "-aes128", "-passout", "pass:x", "-out", str(encrypted)],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    text.write_text("no PEM\n")
    lines = cert.read_text().splitlines()
    cut.write_text("\n".join([*lines[:3], lines[-1]]))
    cases = {
        (tmp_path / "none", key): ("none does not exist", ConfigError),
        (tmp_path, key): ("is a folder", ConfigError),
        (text, key): ("text holds no certificate", ConfigError),
        (cut, key): ("cut.crt: certificate 1 cannot be read", ConfigError),
        (cert, tmp_path / "none"): ("key_file: .*none does not exist", ConfigError),
        (cert, cert): ("good.crt holds no private key", ConfigError),
        (cert, encrypted): ("encrypted.key is encrypted", ConfigError),
        (cert, other): ("other.key does not belong to the certificate in .*good.crt", ConfigError),
    }

    for (one, two), (words, kind) in cases.items():
        with pytest.raises(kind, match=words):
            check_pair(section(one, two))


def test_a_file_that_may_not_be_read(made: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the right to read it is PermissionMissing with what to do."""

    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", refuse)

    with pytest.raises(PermissionMissing, match="cannot be read") as caught:
        read_chain(made[0])
    assert "chmod 0640" in (caught.value.remedy or "")


@pytest.mark.parametrize("junk", [b"", b"\x30", b"\x30\x82\xff\xff", b"\x02\x01\x01", bytes(64)])
def test_bytes_that_are_no_certificate(tmp_path: Path, junk: bytes) -> None:
    """Whatever the DER form holds, the answer is an error with the file."""
    path = tmp_path / "junk.crt"
    path.write_text(ssl.DER_cert_to_PEM_cert(junk))

    with pytest.raises(AscenddError, match=r"junk\.crt"):
        read_chain(path)


def test_both_files_or_none() -> None:
    """A section with one file is told with the key that is missing, and an unknown one with what it may mean."""
    with pytest.raises(ConfigInvalid) as caught:
        convert({"model": {"path": "/m"}, "listen": {"tls": {"cert": "/c", "key_file": "/k"}}})

    text = str(caught.value)
    assert "$.listen.tls.cert_file: is required" in text
    assert "did you mean `cert_file`?" in text


def _openssl(cert: Path, *what: str) -> str:
    command = ["openssl", "x509", "-in", str(cert), "-noout", *what]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return done.stdout.strip().partition("=")[2]
