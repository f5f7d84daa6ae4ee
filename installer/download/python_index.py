"""Python index: which wheels a simple repository (PEP 503, PEP 691) has of a project, with their checksums."""

from __future__ import annotations

import json
import re
import urllib.parse
import zipfile
from email.parser import Parser
from html.parser import HTMLParser
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from ascendd.errors import HostError

from ..bundle import Wheel, parse_wheel
from .fetch import Fetcher, RemoteFile, shown

_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
# A bundle's wheels need no newer glibc either: that of openEuler 22.03 is 2.34, that of Ubuntu 20.04 2.31.
_MAX_GLIBC = 31
_REQUIREMENT = re.compile(
    r"\s*(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^]]*\])?\s*(?P<versions>[^;]*)(?:;(?P<marker>.*))?"
)


class PythonIndex:
    """One index; `url` is that of its simple API, such as https://pypi.org/simple."""

    def __init__(self, fetcher: Fetcher, url: str) -> None:
        self._fetcher, self._url = fetcher, url
        self._projects: Dict[str, Tuple[RemoteFile, ...]] = {}

    def wheel(self, name: str, version: str, python: str, architecture: str) -> RemoteFile:
        """Return the wheel of exactly this version. Raises HostError that names what the index has instead."""
        wheels = [(file, wheel) for file in self._files(name) for wheel in [parse_wheel(file.name)] if wheel]
        fitting = [
            file
            for file, wheel in wheels
            if wheel.version == version and wheel.fits(python, architecture) and _is_old_enough(wheel)
        ]
        if fitting:
            return fitting[0]
        versions = sorted({wheel.version for _, wheel in wheels if wheel.fits(python, architecture)})
        has = f"; it has {', '.join(versions[-8:])}" if versions else ""
        raise HostError(
            f"{shown(self._url)} has no wheel of {name} {version} for Python {python} on {architecture}{has}",
            remedy="Name another index with --index, or a bundle for another Python.",
        )

    def _files(self, name: str) -> Tuple[RemoteFile, ...]:
        if name not in self._projects:
            url = f"{self._url}/{name}/"
            try:
                data = self._fetcher.document(url, _ACCEPT)
            except FileNotFoundError as error:
                raise HostError(f"{shown(self._url)} has no project {name}", remedy="See --index.") from error
            self._projects[name] = tuple(parse_project(data, url))
        return self._projects[name]


def parse_project(data: bytes, url: str) -> List[RemoteFile]:
    """Return the files of a project's page, JSON or HTML; those withdrawn, or without a sha256, are left out."""
    if data.lstrip().startswith(b"{"):
        return [
            RemoteFile(
                urllib.parse.urljoin(url, entry["url"]), entry["filename"], entry["hashes"]["sha256"], entry.get("size")
            )
            for entry in json.loads(data)["files"]
            if entry.get("hashes", {}).get("sha256") and not entry.get("yanked")
        ]
    page = _Page()
    page.feed(data.decode("utf-8", "replace"))
    files = []
    for link in page.links:
        target, fragment = urllib.parse.urldefrag(urllib.parse.urljoin(url, link))
        digest = re.fullmatch(r"sha256=([0-9a-f]{64})", fragment)
        if digest:
            name = urllib.parse.unquote(urllib.parse.urlsplit(target).path.rpartition("/")[2])
            files.append(RemoteFile(target, name, digest[1]))
    return files


def needs_of(wheel: Path) -> Dict[str, str]:
    """Return what a wheel requires on every platform, as name -> versions such as `==2.9.0`; extras are left out."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA") and n.count("/") == 1]
        lines = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist", [])
    found = {}
    for line in lines:
        match = _REQUIREMENT.fullmatch(line)
        if match and "extra" not in (match["marker"] or ""):
            found[re.sub(r"[-_.]+", "-", match["name"]).lower()] = match["versions"].strip(" ()")
    return found


def read_constraints(text: str) -> Dict[str, str]:
    """Return the exact versions of a constraints file, by normalized name."""
    pairs = (line.partition("#")[0].strip().partition("==") for line in text.splitlines())
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, is_exact, version in pairs if is_exact}


def _is_old_enough(wheel: Wheel) -> bool:
    """Tell whether one of its platform tags asks for no newer glibc than the bundle's own wheels do."""
    tags = wheel.platform.split(".")
    numbers = [int(match[1]) for match in (re.match(r"manylinux_2_(\d+)_", tag) for tag in tags) if match]
    return not numbers or min(numbers) <= _MAX_GLIBC


class _Page(HTMLParser):
    """The links of a project's page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: List[str] = []

    def handle_starttag(self, tag: str, attrs: List[Tuple[str, Optional[str]]]) -> None:
        """Keep every link that is not withdrawn."""
        values = dict(attrs)
        if tag == "a" and values.get("href") and "data-yanked" not in values:
            self.links.append(str(values["href"]))
