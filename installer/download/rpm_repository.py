"""RPM repository: repomd.xml, its signature, and the primary metadata, all bound by sha256."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
from dataclasses import dataclass
from typing import Callable, Dict, Iterator, List, Optional, Tuple
from xml.etree import ElementTree

from ascendd.errors import HostError

from .fetch import Fetcher, RemoteFile, shown
from .os_closure import Relation, RepositoryPackage
from .signatures import Signatures

_REPO = "{http://linux.duke.edu/metadata/repo}"
_COMMON = "{http://linux.duke.edu/metadata/common}"
_RPM = "{http://linux.duke.edu/metadata/rpm}"
_UNPACK: Dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".xz": lzma.decompress,
    ".bz2": bz2.decompress,
    ".xml": lambda data: data,
}
_OPERATORS = {"LT": "<", "LE": "<=", "EQ": "=", "GE": ">=", "GT": ">"}
# Sources and debug packages beside them are of no use on a server.
_NO_SOURCE = ("src", "nosrc")


@dataclass(frozen=True)
class RpmRepository:
    """One repository: the folder that holds repodata/."""

    url: str

    def packages(self, fetcher: Fetcher, signatures: Signatures, architecture: str) -> List[RepositoryPackage]:
        """Read the index. Raises HostError for a bad signature, a checksum that is wrong, and what is not there."""
        path = f"{self.url}/repodata/repomd.xml"
        try:
            repomd = fetcher.document(path)
        except FileNotFoundError as error:
            raise HostError(f"{shown(path)} is not there", remedy="See the --os-repository that names it.") from error
        try:
            signature = fetcher.document(path + ".asc")
        except FileNotFoundError:
            signature = None
        signatures.check(path, repomd, signature)
        entries = _parse_xml(repomd, path).iter(f"{_REPO}data")
        primary = next((entry for entry in entries if entry.get("type") == "primary"), None)
        location = None if primary is None else primary.find(f"{_REPO}location")
        checksum = None if primary is None else primary.find(f"{_REPO}checksum")
        if location is None or checksum is None or checksum.get("type") != "sha256":
            raise HostError(f"{shown(path)} names no primary metadata with a sha256", remedy="Name another repository.")
        name = location.get("href", "")
        unpack = _UNPACK.get("." + name.rpartition(".")[2])
        if unpack is None:
            raise HostError(
                f"{shown(self.url)}/{name} is packed in a way that Python does not know without more packages",
                remedy="Name a mirror whose metadata are packed with gzip, xz or bzip2.",
            )
        data = fetcher.document(f"{self.url}/{name}")
        seen = hashlib.sha256(data).hexdigest()
        if seen != (checksum.text or "").strip():
            raise HostError(
                f"{shown(self.url)}/{name} has the sha256 {seen}, its repomd.xml says {checksum.text}",
                remedy="The mirror may be in the middle of an update: run it again later, or name another.",
            )
        return list(self._parse(unpack(data), architecture))

    def _parse(self, primary: bytes, architecture: str) -> Iterator[RepositoryPackage]:
        for node in _parse_xml(primary, self.url).iter(f"{_COMMON}package"):
            arch = node.findtext(f"{_COMMON}arch", "")
            checksum, location, form = (node.find(_COMMON + tag) for tag in ("checksum", "location", "format"))
            if arch not in (architecture, "noarch") or arch in _NO_SOURCE or checksum is None or location is None:
                continue
            if checksum.get("type") != "sha256" or form is None:
                continue
            href = location.get("href", "")
            size = node.find(f"{_COMMON}size")
            file = RemoteFile(
                f"{self.url}/{href}",
                href.rpartition("/")[2],
                (checksum.text or "").strip(),
                int(size.get("package", "0")) or None if size is not None else None,
            )
            files = tuple(Relation(path.text or "") for path in form.iter(f"{_COMMON}file"))
            yield RepositoryPackage(
                node.findtext(f"{_COMMON}name", ""),
                _version(node.find(f"{_COMMON}version")),
                file,
                tuple((relation,) for relation in self._entries(form, "requires") if _is_plain(relation.name)),
                (*self._entries(form, "provides"), *files),
            )

    @staticmethod
    def _entries(form: ElementTree.Element, tag: str) -> Tuple[Relation, ...]:
        return tuple(
            Relation(entry.get("name", ""), _OPERATORS.get(entry.get("flags", ""), ""), _version(entry))
            for entry in form.iterfind(f"{_RPM}{tag}/{_RPM}entry")
        )


def _parse_xml(data: bytes, url: str) -> ElementTree.Element:
    """Return the root. Raises HostError; metadata of rpm declare no entities, so a document that does is refused."""
    try:
        if b"<!" in data[:1024].replace(b"<!--", b""):
            raise ElementTree.ParseError("it declares a document type")
        return ElementTree.fromstring(data)  # noqa: S314 - entities were refused
    except ElementTree.ParseError as error:
        raise HostError(f"{shown(url)}: the metadata cannot be read: {error}", remedy="Name another mirror.") from error


def _is_plain(name: str) -> bool:
    """Leave out what rpm itself answers, and conditions such as `(a if b)`, which the host's own resolver judges."""
    return not name.startswith(("rpmlib(", "("))


def _version(node: Optional[ElementTree.Element]) -> str:
    if node is None or not node.get("ver"):
        return ""
    epoch, release = node.get("epoch", "0"), node.get("rel")
    return ("" if epoch == "0" else f"{epoch}:") + str(node.get("ver")) + (f"-{release}" if release else "")
