"""One file over HTTP: gone on with after whatever ends the connection, and kept only with the promised checksum."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from ascendd.installer.download.fetch import Fetcher, RemoteFile, check_url, shown
from file_server import FileServer

from ascendd.errors import HostError, UsageError

DATA = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[FileServer]:
    """A server with the one file /a."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/a").write_bytes(DATA)
    server = FileServer(tmp_path / "site")
    yield server
    server.close()


@pytest.fixture(autouse=True)
def no_netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home folder of the test's own."""
    monkeypatch.setenv("HOME", str(tmp_path))


class Pauses:
    """Counts what the fetcher waits, and takes its lines."""

    def __init__(self) -> None:
        self.waited: list[float] = []
        self.lines: list[str] = []
        self.fetcher = Fetcher(self.lines.append, self.waited.append, timeout_s=90.0)


def wanted(site: FileServer, size: int | None = len(DATA)) -> RemoteFile:
    return RemoteFile(f"{site.url}/a", "a", SHA256, size)


def test_a_file_comes_whole_and_is_not_fetched_twice(site: FileServer, tmp_path: Path) -> None:
    """What is there with the right checksum needs no request."""
    fetcher = Pauses().fetcher
    first = fetcher.file(wanted(site), tmp_path / "out/a")
    second = fetcher.file(wanted(site), tmp_path / "out/a")

    assert (first, second) == (True, False)
    assert (tmp_path / "out/a").read_bytes() == DATA
    assert site.paths() == ["/a"]


@pytest.mark.parametrize("size", [len(DATA), None])
def test_broken_connections_are_gone_on_with(site: FileServer, tmp_path: Path, size: int | None) -> None:
    """Each attempt begins where the last one ended, and one that brought bytes costs no patience."""
    site.faults["/a"] = [100_000] * 8
    pauses = Pauses()
    pauses.fetcher.file(wanted(site, size), tmp_path / "a")

    assert (tmp_path / "a").read_bytes() == DATA
    assert [asked for _, asked, _ in site.requests] == [None, *(f"bytes={n * 100_000}-" for n in range(1, 9))]
    assert pauses.waited == [1.0] * 8
    assert "the connection ended after 100000 of 1024000 bytes" in pauses.lines[0]


def test_a_server_that_knows_no_ranges_sends_it_whole(site: FileServer, tmp_path: Path) -> None:
    """What came before is written over, not appended to."""
    site.faults["/a"] = [100_000, "whole"]
    Pauses().fetcher.file(wanted(site), tmp_path / "a")

    assert (tmp_path / "a").read_bytes() == DATA


def test_a_server_that_stays_broken_is_given_up(site: FileServer, tmp_path: Path) -> None:
    """Five attempts with growing pauses; what had come is kept for the next run."""
    site.faults["/a"] = [100_000, *["503"] * 5]
    pauses = Pauses()
    with pytest.raises(HostError, match=r"cannot be fetched: status 503") as raised:
        pauses.fetcher.file(wanted(site), tmp_path / "a")

    assert pauses.waited == [1.0, 2.0, 4.0, 8.0]
    assert "Run the same command again" in str(raised.value.remedy)
    assert not (tmp_path / "a").exists()
    assert (tmp_path / "a.part").stat().st_size == 100_000


def test_a_refusal_is_not_asked_again(site: FileServer, tmp_path: Path) -> None:
    """Status 403 does not change by waiting, and a file that is named and not there is said so."""
    site.faults["/a"] = ["403", "404"]
    pauses = Pauses()
    with pytest.raises(HostError, match="status 403"):
        pauses.fetcher.file(wanted(site), tmp_path / "a")
    with pytest.raises(HostError, match=r"is not there .*though its index names it"):
        pauses.fetcher.file(wanted(site), tmp_path / "a")

    assert len(site.requests) == 2
    assert pauses.waited == []


def test_a_wrong_checksum_is_never_kept(site: FileServer, tmp_path: Path) -> None:
    """It is fetched once more from the beginning; if it is wrong again, nothing is left that looks right."""
    site.faults["/a"] = [DATA[:-1] + b"x"] * 2
    with pytest.raises(HostError, match=f"its index promises {SHA256}") as raised:
        Pauses().fetcher.file(wanted(site), tmp_path / "a")

    assert "do not install what came" in str(raised.value.remedy)
    assert list(tmp_path.glob("a*")) == []
    assert [asked for _, asked, _ in site.requests] == [None, None]


def test_the_rest_of_another_file_is_found_by_the_checksum(site: FileServer, tmp_path: Path) -> None:
    """A partial file that is none of this one, or is too long, costs one more fetch and nothing else."""
    for rest in (b"x" * 100_000, DATA + b"more"):
        (tmp_path / "a.part").write_bytes(rest)
        Pauses().fetcher.file(wanted(site, None), tmp_path / "a")

        assert (tmp_path / "a").read_bytes() == DATA
        (tmp_path / "a").unlink()


def test_passwords_come_from_netrc_only(site: FileServer, tmp_path: Path) -> None:
    """A URL with a password is refused without repeating it, and netrc's goes to that machine."""
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password hunter2\n")
    (tmp_path / ".netrc").chmod(0o600)
    Pauses().fetcher.file(wanted(site), tmp_path / "a")
    with pytest.raises(UsageError) as raised:
        check_url("https://me:hunter2@example.com/simple", "--index")

    assert site.requests[0][2] == "Basic bWU6aHVudGVyMg=="
    assert "hunter2" not in f"{raised.value.message} {raised.value.remedy}"
    assert shown("https://me:hunter2@example.com/a?token=1") == "https://example.com/a"


def test_a_full_disk_is_not_the_servers_fault(site: FileServer, tmp_path: Path) -> None:
    """It is named at once, without another attempt."""
    (tmp_path / "a.part").symlink_to("/dev/full")
    with pytest.raises(HostError, match="No space left on device"):
        Pauses().fetcher.file(wanted(site), tmp_path / "a")

    assert len(site.requests) == 1
