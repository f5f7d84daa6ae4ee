"""Debian repository: Release, its signature, and the Packages of each component, all bound by sha256."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import re
from dataclasses import dataclass
from typing import Callable, Dict, Iterator, List, Optional, Tuple

from ascendd.errors import HostError

from .fetch import Fetcher, RemoteFile, shown
from .os_closure import Relation, RepositoryPackage
from .signatures import Signatures

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_BASE = ("required", "important")
_UNPACK: Tuple[Tuple[str, Callable[[bytes], bytes]], ...] = (
    (".xz", lzma.decompress),
    (".gz", gzip.decompress),
    ("", lambda data: data),
)
_RELATION = re.compile(r"(?P<name>[^\s:(]+)(?::\S+)?\s*(?:\((?P<operator><<|<=|=|>=|>>)\s*(?P<version>[^)\s]+)\))?.*")
_OPERATORS = {"<<": "<", ">>": ">"}


@dataclass(frozen=True)
class DebRepository:
    """One suite of a repository, such as http://deb.debian.org/debian bookworm main."""

    url: str
    suite: str
    components: Tuple[str, ...]

    def packages(self, fetcher: Fetcher, signatures: Signatures, architecture: str) -> List[RepositoryPackage]:
        """Read the index. Raises HostError for a bad signature, a checksum that is wrong, and what is not there."""
        folder = f"{self.url}/dists/{self.suite}"
        try:
            release = signatures.signed_text(f"{folder}/InRelease", fetcher.document(f"{folder}/InRelease"))
        except FileNotFoundError:
            release = self._detached(fetcher, signatures, folder)
        sums = dict(_sums(release))
        found: List[RepositoryPackage] = []
        for component in self.components:
            name = f"{component}/binary-{ARCHITECTURES[architecture]}/Packages"
            found += map(self._package, stanzas(self._index(fetcher, folder, name, sums)))
        return found

    def _detached(self, fetcher: Fetcher, signatures: Signatures, folder: str) -> str:
        try:
            release = fetcher.document(f"{folder}/Release")
            signature = _optional(fetcher, f"{folder}/Release.gpg")
        except FileNotFoundError as error:
            raise HostError(
                f"{shown(folder)} has neither InRelease nor Release", remedy="See the --os-repository that names it."
            ) from error
        signatures.check(f"{folder}/Release", release, signature)
        return release.decode("utf-8", "replace")

    def _index(self, fetcher: Fetcher, folder: str, name: str, sums: Dict[str, str]) -> str:
        for ending, unpack in _UNPACK:
            if name + ending in sums:
                try:
                    data = fetcher.document(f"{folder}/{name}{ending}")
                except FileNotFoundError:
                    continue
                seen = hashlib.sha256(data).hexdigest()
                if seen != sums[name + ending]:
                    raise HostError(
                        f"{shown(folder)}/{name}{ending} has the sha256 {seen}, its Release says {sums[name + ending]}",
                        remedy="The mirror may be in the middle of an update: run it again later, or name another.",
                    )
                return unpack(data).decode("utf-8", "replace")
        raise HostError(f"{shown(folder)} has no {name}", remedy="See components and architecture of --os-repository.")

    def _package(self, stanza: Dict[str, str]) -> RepositoryPackage:
        path = stanza["Filename"]
        # As apt names the files: the colon of an epoch does not belong into one.
        name = f"{stanza['Package']}_{stanza['Version'].replace(':', '%3a')}_{stanza['Architecture']}.deb"
        relations = ", ".join(filter(None, (stanza.get("Pre-Depends"), stanza.get("Depends"))))
        return RepositoryPackage(
            stanza["Package"],
            stanza["Version"],
            RemoteFile(f"{self.url}/{path}", name, stanza["SHA256"], int(stanza["Size"])),
            parse_relations(relations),
            tuple(relation for group in parse_relations(stanza.get("Provides", "")) for relation in group),
            stanza.get("Essential") == "yes" or stanza.get("Priority") in _BASE,
        )


def stanzas(text: str) -> Iterator[Dict[str, str]]:
    """Return the paragraphs of a Packages file that describe a package which can be fetched and proven."""
    for paragraph in text.split("\n\n"):
        fields: Dict[str, str] = {}
        for line in paragraph.splitlines():
            key, colon, value = line.partition(":")
            if colon and not line[0].isspace():
                fields[key] = value.strip()
        if {"Package", "Version", "Architecture", "Filename", "SHA256", "Size"} <= fields.keys():
            yield fields


def parse_relations(text: str) -> Tuple[Tuple[Relation, ...], ...]:
    """Return `a (>= 1) | b, c` as groups of alternatives."""
    groups = (part.strip() for part in text.split(","))
    return tuple(tuple(map(_relation, group.split("|"))) for group in groups if group)


def _relation(text: str) -> Relation:
    match = _RELATION.fullmatch(text.strip())
    assert match is not None, text
    operator = match["operator"] or ""
    return Relation(match["name"], _OPERATORS.get(operator, operator), match["version"] or "")


def _sums(release: str) -> Iterator[Tuple[str, str]]:
    """Return (path, sha256) of the SHA256 part of a Release."""
    is_inside = False
    for line in release.splitlines():
        if not line.startswith(" "):
            is_inside = line.startswith("SHA256:")
        elif is_inside and len(fields := line.split()) == 3:
            yield fields[2], fields[0]


def _optional(fetcher: Fetcher, url: str) -> Optional[bytes]:
    try:
        return fetcher.document(url)
    except FileNotFoundError:
        return None
