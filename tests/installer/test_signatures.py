"""Signatures that the vendor ships beside its packages: proven by what the operator trusts, refused by name."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.system
TOOLKIT = "Ascend-cann-toolkit_8.5.0_linux-x86_64.run"


def run(*argv: str | Path) -> None:
    done = subprocess.run([str(part) for part in argv], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Signer:
    """Signs the toolkit of a host by OpenPGP, and gives its key armoured, as vendors publish theirs."""

    def __init__(self, folder: Path, name: str) -> None:
        self._home, self.trust = folder / f"gpg-{name}", folder / f"{name}.txt"
        self._home.mkdir(mode=0o700)
        self._gpg("--quick-generate-key", name, "ed25519", "sign")
        self._gpg("--armor", "--output", self.trust, "--export")

    def sign(self, package: Path) -> None:
        self._gpg("--armor", "--output", f"{package}.asc", "--detach-sign", package)
        run("gpgconf", "--homedir", self._home, "--kill", "all")

    def _gpg(self, *argv: str | Path) -> None:
        run(
            "gpg",
            "--homedir",
            self._home,
            "--batch",
            "--quiet",
            "--pinentry-mode",
            "loopback",
            "--passphrase",
            "",
            *argv,
        )


class Authority:
    """Signs by CMS with a certificate of its own, and lists what it has revoked."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.trust = folder / "authority", folder / "authority/root.pem"
        self._folder.mkdir()
        for name in ("root", "leaf"):
            run("openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj",
                f"/CN={name}", "-keyout", self._folder / f"{name}.key", "-out", self._folder / f"{name}.csr")  # fmt: skip
        (self._folder / "ca.ext").write_text("basicConstraints=critical,CA:true\nkeyUsage=keyCertSign,cRLSign\n")
        run("openssl", "x509", "-req", "-in", self._folder / "root.csr", "-key", self._folder / "root.key", "-days", "9",
            "-extfile", self._folder / "ca.ext", "-out", self.trust)  # fmt: skip
        run("openssl", "x509", "-req", "-in", self._folder / "leaf.csr", "-CA", self.trust, "-CAkey",
            self._folder / "root.key", "-set_serial", "7", "-days", "9", "-out", self._folder / "leaf.pem")  # fmt: skip
        (self._folder / "index").touch()
        (self._folder / "ca.cnf").write_text(
            f"[ca]\ndefault_ca=own\n[own]\ndatabase={self._folder}/index\ndefault_md=sha256\ndefault_crl_days=9\n"
        )

    def sign(self, package: Path) -> None:
        run("openssl", "cms", "-sign", "-binary", "-in", package, "-signer", self._folder / "leaf.pem", "-inkey",
            self._folder / "leaf.key", "-outform", "DER", "-out", f"{package}.cms")  # fmt: skip
        self.list_revoked(package)

    def revoke(self) -> None:
        self._ca("-revoke", self._folder / "leaf.pem")

    def list_revoked(self, package: Path) -> None:
        self._ca("-gencrl", "-out", self._folder / "list.pem")
        run("openssl", "crl", "-in", self._folder / "list.pem", "-outform", "DER", "-out", f"{package}.crl")

    def _ca(self, *argv: str | Path) -> None:
        run("openssl", "ca", "-config", self._folder / "ca.cnf", "-cert", self.trust, "-keyfile",
            self._folder / "root.key", *argv)  # fmt: skip


def plan(host, *options: str | Path) -> tuple[int, str]:
    status = host.run("plan", "--media", str(host.media), *map(str, options))
    return status, host.output


def change(host) -> None:
    """Change the package, with a checksum that fits: only the signature can tell."""
    with (host.media / TOOLKIT).open("a") as package:
        package.write("# evil\n")
    host.seal_media()


def test_a_good_signature_is_told_and_kept_for_resume(host, tmp_path: Path) -> None:
    """Plan names what is signed and what is not; apply and resume prove it again by the same file."""
    signer = Signer(tmp_path, "vendor")
    signer.sign(host.media / TOOLKIT)
    status, said = plan(host, "--trust", signer.trust)
    assert host.apply("--trust", str(signer.trust)) == 75, host.output
    change(host)
    host.reboot()

    assert status == 0
    assert f"{TOOLKIT} is signed by whom {signer.trust} names" in said
    assert "Ascend-cann-910b-ops_8.5.0_linux-x86_64.run has no signature beside it" in said
    assert host.run("resume", "--yes") == 69
    assert f"{TOOLKIT} is not proven by {TOOLKIT}.asc" in host.output


def test_another_signer_and_another_package_are_refused(host, tmp_path: Path) -> None:
    """A key that is not trusted proves nothing, nor does a good key for a package that was changed afterwards."""
    vendor, stranger = Signer(tmp_path, "vendor"), Signer(tmp_path, "stranger")
    vendor.sign(host.media / TOOLKIT)
    before = host.tree()
    refused = plan(host, "--trust", stranger.trust)
    change(host)
    changed = plan(host, "--trust", vendor.trust)

    assert [refused[0], changed[0]] == [69, 69]
    assert f"{TOOLKIT} is not proven by {TOOLKIT}.asc and {stranger.trust}: gpgv ended with status" in refused[1]
    assert "BAD signature" in changed[1]
    assert host.tree() == before


def test_cms_with_revoked_certificates(host, tmp_path: Path) -> None:
    """A package signed by a certificate of the root is proven, until it changes or the certificate is revoked."""
    authority = Authority(tmp_path)
    authority.sign(host.media / TOOLKIT)
    good = plan(host, "--trust", authority.trust)
    authority.revoke()
    authority.list_revoked(host.media / TOOLKIT)
    revoked = plan(host, "--trust", authority.trust)
    (host.media / f"{TOOLKIT}.crl").unlink()
    change(host)
    changed = plan(host, "--trust", authority.trust)

    assert [good[0], revoked[0], changed[0]] == [0, 69, 69]
    assert f"{TOOLKIT} is signed by whom" in good[1]
    assert "certificate revoked" in revoked[1]
    assert f"{TOOLKIT} is not proven by {TOOLKIT}.cms" in changed[1]


def test_nothing_is_proven_without_trust(host, tmp_path: Path) -> None:
    """A signature that nobody can judge is said to be unchecked; a file that cannot be what is needed is refused."""
    signer = Signer(tmp_path, "vendor")
    signer.sign(host.media / TOOLKIT)
    unchecked = plan(host)
    certificate = tmp_path / "root.pem"
    certificate.write_text("-----BEGIN CERTIFICATE-----\n")
    wrong = plan(host, "--trust", certificate)
    missing = plan(host, "--trust", tmp_path / "nowhere")

    assert [unchecked[0], wrong[0], missing[0]] == [0, 69, 69]
    assert f"the signatures beside {TOOLKIT} are not checked: name the vendor's keys by --trust" in unchecked[1]
    assert "it needs an OpenPGP keyring, and the file has certificates" in wrong[1]
    assert f"--trust {tmp_path}/nowhere cannot be read: No such file or directory" in missing[1]
