"""`install.sh download` from an unpacked bundle against a server of its own: wheels, packages, checksums, vendor files."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ascendd.installer.media import read_media
from ascendd.installer.os_packages import PackageManager
from file_server import FileServer

DRIVER, FIRMWARE = "Ascend-hdk-910b-npu-driver_25.5.0_linux-x86-64.run", "Ascend-hdk-910b-npu-firmware_7.8.0.5.216.run"
TOOLKIT, OPS = "Ascend-cann-toolkit_8.5.0_linux-x86_64.run", "Ascend-cann-910b-ops_8.5.0_linux-x86_64.run"
TORCH_NPU = "torch_npu-2.9.0-cp311-cp311-manylinux_2_28_x86_64.whl"
NPU = ("--cann", "8.5.0", "--chip", "910b", "--driver", "25.5.0", "--firmware", "7.8.0.5.216")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Site(FileServer):
    """An index of wheels, a Debian repository, and a folder of vendor packages."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.add_wheel(TORCH_NPU, "torch==2.9.0.*", "numpy", "extra-thing; extra == 'x'")
        self.add_wheel("torch_npu-2.9.0-cp311-cp311-manylinux_2_28_aarch64.whl")
        self.add_wheel("numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl")
        self.write("vendor/index", b"")
        self.fill_repository(
            {
                "base-files": ("12", "Essential: yes\nDepends: libc6"),
                "libc6": ("2.36-9", "Priority: optional"),
                "python3.11": ("3.11.2-6", "Depends: libc6 (>= 2.36), media-types | mime-support"),
                "python3.11-venv": ("3.11.2-6", "Depends: python3.11 (= 3.11.2-6)"),
                "media-types": ("10.0.0", ""),
                "pciutils": ("1:3.9.0-4", "Depends: libc6"),
                "net-tools": ("2.10", "Depends: libc6"),
            }
        )

    @property
    def repository(self) -> str:
        return f"deb {self.url}/debian bookworm main"

    def write(self, path: str, data: bytes) -> bytes:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_bytes(data)
        return data

    def add_wheel(self, name: str, *needs: str) -> None:
        path = self.folder / "files" / name
        path.parent.mkdir(exist_ok=True)
        project, version = name.split("-")[:2]
        with zipfile.ZipFile(path, "w") as archive:
            lines = ["Metadata-Version: 2.1", f"Name: {project}", *(f"Requires-Dist: {need}" for need in needs)]
            archive.writestr(f"{project}-{version}.dist-info/METADATA", "\n".join(lines) + "\n")
            archive.writestr(f"{project}/__init__.py", "x = 1\n" * 20_000)
        page = self.folder / f"simple/{project.replace('_', '-')}/index"
        page.parent.mkdir(parents=True, exist_ok=True)
        link = f'<a href="../../files/{name}#sha256={digest(path.read_bytes())}">{name}</a>\n'
        page.write_text((page.read_text() if page.exists() else "") + link)

    def fill_repository(self, packages: dict[str, tuple[str, str]]) -> None:
        stanzas = []
        for name, (version, fields) in packages.items():
            path = f"pool/{name}.deb"
            data = self.write(f"debian/{path}", f"package {name}\n".encode() * 100)
            facts = f"Filename: {path}\nSize: {len(data)}\nSHA256: {digest(data)}"
            stanzas.append(
                "\n".join(filter(None, (f"Package: {name}\nVersion: {version}\nArchitecture: amd64", fields, facts)))
            )
        index = self.write(
            "debian/dists/bookworm/main/binary-amd64/Packages.gz", gzip.compress("\n\n".join(stanzas).encode())
        )
        release = f"Suite: stable\nSHA256:\n {digest(index)} {len(index)} main/binary-amd64/Packages.gz\n"
        self.write("debian/dists/bookworm/InRelease", release.encode())

    def fill_vendor(self, *names: str) -> None:
        sums = [f"{digest(self.write(f'vendor/{name}', name.encode() * 500))}  {name}\n" for name in names]
        self.write("vendor/SHA256SUMS", "".join(sums).encode())


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "site").mkdir()
    server = Site(tmp_path / "site")
    yield server
    server.close()


class Machine:
    """The connected machine: runs the verb from the bundle, with a home of its own."""

    def __init__(self, folder: Path, bundle: Path, site: Site) -> None:
        self.media, self._folder, self._bundle, self._site = folder / "media", folder, bundle, site

    def argv(self, *options: str) -> list[str]:
        index = ("--index", f"{self._site.url}/simple")
        return [str(self._bundle / "install.sh"), "download", "--media", str(self.media), *index, *options]

    @property
    def environ(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self._folder), "no_proxy": "127.0.0.1"}

    def run(self, *options: str) -> tuple[int, dict[str, Any], str]:
        """Return status, report and progress."""
        done = subprocess.run(
            self.argv("--json", *options), env=self.environ, capture_output=True, text=True, check=False, timeout=120
        )
        return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr

    def media_problems(self) -> tuple[str, ...]:
        """Return what the installer of a Debian host with a 910B says of the folder."""
        return read_media(str(self.media), "x86_64", ("A2",), PackageManager(".deb")).problems


@pytest.fixture
def machine(tmp_path: Path, bundle: Path, site: Site) -> Machine:
    return Machine(tmp_path, bundle, site)


def test_a_whole_media_folder(machine: Machine, site: Site) -> None:
    """Wheels, packages with what they need, and vendor files come with checksums, and the installer takes them."""
    site.fill_vendor(DRIVER, FIRMWARE, TOOLKIT, OPS)
    status, report, _ = machine.run(*NPU, "--os-repository", site.repository, "--vendor-url", f"{site.url}/vendor")

    assert (status, report["outcome"], report["outstanding"]) == (0, "complete", [])
    assert {path.name for path in (machine.media / "wheels").iterdir()} == {
        TORCH_NPU, "numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
    }  # fmt: skip
    assert {path.name for path in (machine.media / "os").iterdir()} == {
        "python3.11_3.11.2-6_amd64.deb", "python3.11-venv_3.11.2-6_amd64.deb", "media-types_10.0.0_amd64.deb",
        "pciutils_1%3a3.9.0-4_amd64.deb", "net-tools_2.10_amd64.deb",
    }  # fmt: skip
    assert machine.media_problems() == ()
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=machine.media, check=True)
    assert report["signatures"] == {f"{site.url}/debian/dists/bookworm/InRelease": "not signed"}


def test_a_second_run_fetches_nothing(machine: Machine, site: Site) -> None:
    """What is there is proven by its checksum; only the indexes are read again."""
    options = ("--os-repository", site.repository, "--wheel", "torch_npu==2.9.0")
    first = machine.run(*options)[1]
    before = {path: path.stat().st_mtime_ns for path in machine.media.rglob("*") if path.is_file()}
    site.requests.clear()
    status, second, _ = machine.run(*options)

    assert (status, len(first["files"])) == (0, len(second["files"]))
    assert not any(entry["is_new"] for entry in second["files"])
    assert not [path for path in site.paths() if path.endswith((".whl", ".deb"))]
    assert {path: path.stat().st_mtime_ns for path in machine.media.rglob("*") if path.is_file()} == before


def test_killed_in_the_middle_of_a_file_it_goes_on_there(machine: Machine, site: Site) -> None:
    """After SIGKILL the next run asks for the rest of that file only, and leaves no partial file."""
    wheel = f"/files/{TORCH_NPU}"
    size = (site.folder / wheel[1:]).stat().st_size
    site.faults[wheel] = [f"stall {size // 2}"]
    options = ("--wheel", "torch_npu==2.9.0")
    running = subprocess.Popen(
        machine.argv(*options), env=machine.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert site.stalled.wait(90)
    partial = machine.media / f"wheels/{TORCH_NPU}.part"
    while not (partial.exists() and partial.stat().st_size > 0) and running.poll() is None:
        time.sleep(0.02)
    running.kill()
    running.communicate()
    there = partial.stat().st_size
    status, report, _ = machine.run(*options)

    assert 0 < there < size
    assert (status, report["outcome"]) == (0, "complete")
    assert [asked for path, asked, _ in site.requests if path == wheel] == [None, f"bytes={there}-"]
    assert not list(machine.media.rglob("*.part"))
    assert machine.media_problems() == ()


def test_vendor_files_are_named_and_never_made_up(machine: Machine) -> None:
    """What only the vendor's page gives is named with that page; the status says that the folder is not whole."""
    status, report, _ = machine.run(*NPU, "--nnal")

    assert status == 69
    assert [entry["file"] for entry in report["outstanding"]] == [
        DRIVER, FIRMWARE, TOOLKIT, OPS, "Ascend-cann-nnal_8.5.0_linux-x86_64.run",
    ]  # fmt: skip
    assert {entry["page"] for entry in report["outstanding"]} == {
        "https://www.hiascend.com/hardware/firmware-drivers/community", "https://www.hiascend.com/cann/download",
    }  # fmt: skip
    assert "Ascend-hdk-910b-npu_25.5.0_linux-x86-64.zip" in report["outstanding"][0]["why"]
    assert not list(machine.media.glob("*.run"))


def test_vendor_files_of_the_operator_are_proven(machine: Machine) -> None:
    """One without a checksum from the page, or with a wrong one, stays outstanding; a right one counts."""
    machine.media.mkdir()
    for name in (DRIVER, FIRMWARE, TOOLKIT):
        (machine.media / name).write_text(name)
    lines = f"# from the page\n{digest(DRIVER.encode())}  {DRIVER}\n{'0' * 64}  {FIRMWARE}\n"
    (machine.media / "SHA256SUMS").write_text(lines)
    status, report, _ = machine.run(*NPU)
    why = {entry["file"]: entry["why"] for entry in report["outstanding"]}

    assert status == 69
    assert DRIVER not in why
    assert "there and corrupt" in why[FIRMWARE]
    assert "do not compute it" in why[TOOLKIT]
    assert (machine.media / "SHA256SUMS").read_text().startswith(lines)


def test_a_wrong_checksum_stops_it(machine: Machine, site: Site) -> None:
    """A package that is not what the index promises is not kept, and what came before it is."""
    site.write("debian/pool/python3.11.deb", b"not the package")
    status, report, _ = machine.run("--os-repository", site.repository)

    assert (status, report["outcome"], report["error"]["code"]) == (71, "failed", "ASD-H01")
    assert "/debian/pool/python3.11.deb has the sha256" in report["error"]["message"]
    assert not [path for path in machine.media.rglob("*") if path.name.startswith("python3.11_")]
    assert (machine.media / "os/media-types_10.0.0_amd64.deb").exists()
    assert machine.media_problems() == ()


def test_an_index_that_is_not_its_releases_is_refused(machine: Machine, site: Site) -> None:
    """The index of packages is bound to the signed Release by its checksum."""
    site.write("debian/dists/bookworm/main/binary-amd64/Packages.gz", gzip.compress(b"Package: evil\n"))
    status, report, _ = machine.run("--os-repository", site.repository)

    assert status == 71
    assert "its Release says" in report["error"]["message"]


def test_what_is_not_wanted_any_more_goes(machine: Machine, site: Site) -> None:
    """A newer package replaces the older one; an operator's own file and lines stay."""
    machine.run("--os-repository", site.repository)
    (machine.media / "os/own_1_all.deb").write_text("own")
    with (machine.media / "SHA256SUMS").open("a") as sums:
        sums.write(f"{digest(b'own')}  os/own_1_all.deb\n")
    site.fill_repository({"python3.11-venv": ("3.11.2-7", "")})
    status, report, _ = machine.run("--os-repository", site.repository)

    assert status == 0
    assert {path.name for path in (machine.media / "os").iterdir()} == {
        "python3.11-venv_3.11.2-7_amd64.deb", "own_1_all.deb",
    }  # fmt: skip
    assert any("os/media-types_10.0.0_amd64.deb" in note for note in report["notes"])
    assert machine.media_problems() == ()


def test_what_the_host_has_is_not_fetched(machine: Machine, site: Site, tmp_path: Path) -> None:
    """With the list of its packages only the rest is; one in another version than is needed is refused by name."""
    installed = tmp_path / "installed"
    installed.write_text("libc6:amd64 2.36-9\npython3.11:amd64 3.11.2-6\n")
    status, report, _ = machine.run("--os-repository", site.repository, "--installed", str(installed))
    installed.write_text("libc6 2.36-9\npython3.11 3.11.2-5\n")
    refused, refusal, _ = machine.run("--os-repository", site.repository, "--installed", str(installed))

    assert (status, [entry["file"] for entry in report["files"]]) == (0, ["os/python3.11-venv_3.11.2-6_amd64.deb"])
    assert refused == 69
    assert "python3.11 = 3.11.2-6, and the host has python3.11 3.11.2-5" in refusal["error"]["message"]


@pytest.mark.parametrize(
    ("options", "status", "says"),
    [
        ((), 64, "nothing to download"),
        (("--cann", "8.5.0"), 64, "--chip is not"),
        (("--cann", "8.5.0", "--chip", "910z"), 64, "--chip is `910z`"),
        (("--cann", "8.5.0", "--chip", "910b"), 64, "versions of driver and firmware are not named"),
        (("--cann", "9.1.0", "--chip", "910b", "--driver", "25.0.1", "--firmware", "7.8"), 69, "not made for CANN 9.1.0"),
        (("--cann", "8.2.RC1", "--chip", "910b", "--has-driver"), 69, "the bundle holds torch 2.9.0; the vendor pairs"),
        (("--wheel", "torch_npu==9.9"), 71, "no wheel of torch-npu 9.9 for Python 3.11 on x86_64; it has 2.9.0"),
        (("--wheel", "torch_npu"), 64, "--wheel is `torch_npu`"),
        (("--os-repository", "deb nonsense"), 64, "--os-repository is `deb nonsense`"),
        (("--os-repository", "rpm http://127.0.0.1/x"), 64, "does not say what every host has"),
        (("--os", "debian-12", "--keyring", "/none"), 64, "--keyring is `/none`"),
    ],
)  # fmt: skip
def test_refusals_come_before_the_first_file(
    machine: Machine, options: tuple[str, ...], status: int, says: str
) -> None:
    """What cannot be meant, or cannot work together, is said with what to write instead."""
    done = subprocess.run(
        machine.argv(*options), env=machine.environ, capture_output=True, text=True, check=False, timeout=120
    )

    assert (done.returncode, says in done.stderr) == (status, True), done.stderr
    assert "remedy: " in done.stderr
    assert not machine.media.exists()


@pytest.mark.skipif(shutil.which("gpg") is None or shutil.which("gpgv") is None, reason="gpg is not installed")
def test_signatures_of_repositories_count(machine: Machine, site: Site, tmp_path: Path) -> None:
    """Signed by a key of the keyring it is taken; changed afterwards, or signed by another, it is refused."""
    release = site.folder / "debian/dists/bookworm/InRelease"
    rings = []
    for number in (1, 2):
        home = tmp_path / f"gpg{number}"
        home.mkdir(mode=0o700)
        gpg = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", ""]
        subprocess.run(
            [*gpg, "--quick-generate-key", f"signer{number}", "ed25519", "sign"], check=True, capture_output=True
        )
        rings.append(tmp_path / f"ring{number}.gpg")
        subprocess.run([*gpg, "--output", str(rings[-1]), "--export"], check=True)
        if number == 1:
            signed = subprocess.run(
                [*gpg, "--clearsign", "--output", "-", str(release)], check=True, capture_output=True
            )
        subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=False, capture_output=True)
    release.write_bytes(signed.stdout)
    options = ("--os-repository", site.repository, "--keyring")
    good = machine.run(*options, str(rings[0]))
    other = machine.run(*options, str(rings[1]))
    release.write_bytes(signed.stdout.replace(b"Suite: stable", b"Suite: stalle"))
    changed = machine.run(*options, str(rings[0]))

    assert (good[0], list(good[1]["signatures"].values())) == (0, [f"signed by a key of {rings[0]}"])
    assert [(status, "is not signed by a key of" in report["error"]["message"]) for status, report, _ in (other, changed)] \
        == [(71, True), (71, True)]  # fmt: skip
