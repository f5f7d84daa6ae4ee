"""The media as one file: used as the folder is, unpacked only for as long as it is needed, refused where it is not whole."""

from __future__ import annotations

import io
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.system


def pack(host, name: str) -> Path:
    """Pack the media folder by the tool for this ending, without a folder of its own or (zip) within one."""
    archive: Path = host.folder / name
    if name.endswith(".zip"):
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
            for path in sorted(host.media.rglob("*")):
                packed.write(path, Path("media-2026") / path.relative_to(host.media))
    else:
        subprocess.run(["tar", "-caf", archive, "-C", host.media, "."], check=True)
    return archive


def unpacked(host) -> list[str]:
    return [path.name for path in (host.root / "var/tmp").glob("*")]


@pytest.mark.parametrize("name", ["media.tar", "media.tar.gz", "media.zip"])
def test_it_is_used_as_the_folder_is(make_host, name: str) -> None:
    """The host ends as from the folder, plan has nothing to do, uninstall gives it back, and nothing stays unpacked."""
    plain, host = make_host("plain"), make_host("host")
    plain.install()
    (host.root / "var/tmp").mkdir(parents=True)
    before = host.tree(with_state=False)
    archive = str(pack(host, name))
    assert host.run("apply", "--yes", "--media", archive) == 75, host.output
    host.reboot()
    assert host.run("resume", "--yes") == 0, host.output
    ended, left = host.tree(), unpacked(host)
    again = host.run("apply", "--yes", "--media", archive)
    said, after = host.output, host.tree()
    assert host.run("uninstall", "--yes") == 0, host.output

    assert {path: ended[path] for path in ended if path != "var/tmp"} == plain.tree()
    assert host.vendor_calls[: len(plain.vendor_calls)] == plain.vendor_calls
    assert (again, said.endswith("nothing to do\n"), after) == (0, True, ended)
    assert (left, unpacked(host)) == ([], [])
    assert host.tree(with_state=False) == before


def test_a_package_that_outlives_the_installer_keeps_its_files(host) -> None:
    """What a killed run has unpacked stays until its package has ended; then the next run clears it away."""
    archive = str(pack(host, "media.tar"))
    (host.folder / "kill-driver").touch()
    with pytest.raises(host.Killed):
        host.run("apply", "--yes", "--media", archive)
    left = unpacked(host)
    assert host.run("resume", "--yes") == 75, host.output

    assert len(left) == 1
    assert "waiting for an earlier run" in host.output
    assert unpacked(host) == []


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def text(path: Path) -> None:
    path.write_text("no archive\n")


def climbing(path: Path) -> None:
    with tarfile.open(path, "w:gz") as packed:
        packed.addfile(tarfile.TarInfo("../../etc/evil"), io.BytesIO())


def linked(path: Path) -> None:
    with tarfile.open(path, "w:gz") as packed:
        entry = tarfile.TarInfo("os")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc"
        packed.addfile(entry)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (truncated, "cannot be read: "),
        (text, "cannot be read: "),
        (climbing, "holds `../../etc/evil`, which is neither a file nor a folder below it"),
        (linked, "holds `os`, which is neither a file nor a folder below it"),
    ],
)
def test_what_is_not_whole_is_refused(host, spoil: Callable[[Path], None], says: str) -> None:
    """By the name of the file, before anything is touched, and nothing is left of it."""
    archive = pack(host, "media.tar.gz")
    spoil(archive)

    assert host.run("apply", "--yes", "--media", str(archive)) == 69
    assert f"{archive} {says}" in host.output
    assert "remedy: Pack the media folder itself" in host.output
    assert (unpacked(host), host.vendor_calls) == ([], [])
    assert not (host.root / "etc/evil").exists()
