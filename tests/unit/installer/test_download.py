"""What `download` chooses: orders of versions, closures of packages, the pages of indexes, names of vendor files."""

from __future__ import annotations

import hashlib

import pytest
from ascendd.installer.download.deb_repository import parse_relations
from ascendd.installer.download.fetch import Fetcher, RemoteFile
from ascendd.installer.download.os_closure import OsClosure, Relation, RepositoryPackage
from ascendd.installer.download.python_index import parse_project
from ascendd.installer.download.rpm_repository import RpmRepository
from ascendd.installer.download.signatures import Signatures
from ascendd.installer.download.vendor_files import VendorRequest, vendor_files
from ascendd.installer.download.version_order import compare_deb, compare_rpm

from ascendd.errors import HostError


@pytest.mark.parametrize(
    ("older", "newer"),
    [("1.0", "1.1"), ("1.9", "1.10"), ("1.0~rc1", "1.0"), ("1.0", "1.0a"), ("1.0-1", "1.0-2"), ("9", "1:1"),
     ("1.0-1", "1.0-1+deb12u1"), ("3.11.2-6+deb12u5", "3.11.2-6+deb12u6"), ("1.0a", "1.0+")],
)  # fmt: skip
def test_order_of_debian_versions(older: str, newer: str) -> None:
    """A tilde is before the end, an epoch before all, numbers count as numbers."""
    assert compare_deb(older, newer) < 0 < compare_deb(newer, older)
    assert compare_deb(newer, newer) == 0


@pytest.mark.parametrize(
    ("older", "newer"),
    [("1.0-1", "1.0-2"), ("1.9", "1.10"), ("1.0~rc1", "1.0"), ("1.0", "1.0^git1"), ("1.0^git1", "1.0.1"),
     ("1.0a", "1.0.1"), ("9", "1:1"), ("3.11.6-2.oe2403", "3.11.6-10.oe2403")],
)  # fmt: skip
def test_order_of_rpm_versions(older: str, newer: str) -> None:
    """A number is newer than letters, a caret newer than the end and older than another part."""
    assert compare_rpm(older, newer) < 0 < compare_rpm(newer, older)
    assert compare_rpm("1.0", "1.0-3") == 0


def package(
    name: str, version: str, requires: str = "", *, provides: str = "", base: bool = False
) -> RepositoryPackage:
    given = tuple(relation for group in parse_relations(provides) for relation in group)
    return RepositoryPackage(name, version, RemoteFile("", name, ""), parse_relations(requires), given, base)


def test_a_closure_takes_the_newest_and_leaves_what_every_system_has() -> None:
    """Of two versions the newer one is taken; what the base of the system brings with it is not."""
    packages = [
        package("base", "1", "libc (>= 2)", base=True),
        package("libc", "2"),
        package("tool", "1"),
        package("tool", "2", "libc, lib (>= 1) | other, virtual"),
        package("lib", "1"),
        package("giver", "3", provides="virtual"),
    ]
    chosen, problems = OsClosure(packages, compare_deb).resolve(["tool"])

    assert [(p.name, p.version) for p in chosen] == [("giver", "3"), ("lib", "1"), ("tool", "2")]
    assert problems == []


def test_a_closure_names_what_is_missing() -> None:
    """A need that nothing gives, and a name that no repository has, are told."""
    closure = OsClosure([package("tool", "1", "lib (>= 2)"), package("lib", "1")], compare_deb, installed={})
    chosen, problems = closure.resolve(["tool", "none"])

    assert [p.name for p in chosen] == ["tool"]
    assert problems == ["no repository has none", "tool 1 needs lib >= 2, which no repository gives"]


def test_relations_of_debian() -> None:
    """Alternatives, versions and architecture qualifiers are read."""
    assert parse_relations("a:any (>> 1), b (= 2) | c") == (
        (Relation("a", ">", "1"),),
        (Relation("b", "=", "2"), Relation("c")),
    )


def test_the_page_of_a_project_in_both_forms() -> None:
    """Files without a checksum and those withdrawn are left out; addresses are completed."""
    html = b"""<a href="../../f/a-1-py3-none-any.whl#sha256=%b">a</a><a href="b.whl">b</a>
        <a href="c.whl#sha256=%b" data-yanked="">c</a>""" % (b"a" * 64, b"c" * 64)
    text = b"""{"files": [{"filename": "a-1-py3-none-any.whl", "url": "https://x/f/a-1-py3-none-any.whl", "size": 3,
        "hashes": {"sha256": "%b"}}, {"filename": "b.whl", "url": "b.whl", "hashes": {}}]}""" % (b"a" * 64)
    wanted = RemoteFile("https://x/f/a-1-py3-none-any.whl", "a-1-py3-none-any.whl", "a" * 64)

    assert parse_project(html, "https://x/simple/a/") == [wanted]
    assert parse_project(text, "https://x/simple/a/") == [RemoteFile(wanted.url, wanted.name, wanted.sha256, 3)]


PRIMARY = b"""<metadata xmlns="http://linux.duke.edu/metadata/common" xmlns:rpm="http://linux.duke.edu/metadata/rpm">
<package type="rpm"><name>python3</name><arch>x86_64</arch><version epoch="0" ver="3.11.6" rel="2.oe2403"/>
<checksum type="sha256" pkgid="YES">ab</checksum><size package="7"/><location href="Packages/python3.rpm"/><format>
<rpm:requires><rpm:entry name="libc.so.6()(64bit)"/><rpm:entry name="rpmlib(X)"/>
<rpm:entry name="pip" flags="GE" epoch="0" ver="2"/></rpm:requires>
<rpm:provides><rpm:entry name="python(abi)" flags="EQ" epoch="0" ver="3.11"/></rpm:provides>
<file>/usr/bin/python3</file></format></package>
<package type="rpm"><name>other</name><arch>aarch64</arch></package></metadata>"""


class Documents(Fetcher):
    """Answers from a table instead of a network."""

    def __init__(self, table: dict[str, bytes]) -> None:
        super().__init__(print)
        self.table = table

    def document(self, url: str, accept: str = "*/*") -> bytes:
        if url not in self.table:
            raise FileNotFoundError(url)
        return self.table[url]


def repomd(digest: str) -> bytes:
    return (
        '<repomd xmlns="http://linux.duke.edu/metadata/repo"><data type="primary">'
        f'<checksum type="sha256">{digest}</checksum><location href="repodata/p.xml"/></data></repomd>'
    ).encode()


def test_an_rpm_repository() -> None:
    """Packages of the architecture come with needs, what they give, files included; metadata are bound by checksum."""
    table = {
        "http://x/repodata/p.xml": PRIMARY,
        "http://x/repodata/repomd.xml": repomd(hashlib.sha256(PRIMARY).hexdigest()),
    }
    signatures = Signatures(None, None)
    (found,) = RpmRepository("http://x").packages(Documents(table), signatures, "x86_64")
    table["http://x/repodata/repomd.xml"] = repomd("0" * 64)

    assert (found.name, found.version) == ("python3", "3.11.6-2.oe2403")
    assert found.file == RemoteFile("http://x/Packages/python3.rpm", "python3.rpm", "ab", 7)
    assert found.requires == ((Relation("libc.so.6()(64bit)"),), (Relation("pip", ">=", "2"),))
    assert found.provides == (Relation("python(abi)", "=", "3.11"), Relation("/usr/bin/python3"))
    assert signatures.verdicts == {"http://x/repodata/repomd.xml": "not signed"}
    with pytest.raises(HostError, match=r"its repomd\.xml says"):
        RpmRepository("http://x").packages(Documents(table), signatures, "x86_64")


def test_names_of_vendor_files() -> None:
    """Up to CANN 8.3 the operators are called kernels; the architecture is written as each package does."""
    names = [file.name for file in vendor_files(VendorRequest("x86_64", "910b", "8.3.RC1", "25.3.rc1", None))]

    assert names == [
        "Ascend-hdk-910b-npu-driver_25.3.rc1_linux-x86-64.run",
        "Ascend-cann-toolkit_8.3.RC1_linux-x86_64.run",
        "Ascend-cann-kernels-910b_8.3.RC1_linux-x86_64.run",
    ]
