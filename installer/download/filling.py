"""Filling: one run of `download`, that chooses everything before the first file, and then takes file after file."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ascendd.errors import HostError, PreflightFailed, UsageError

from ..bundle import Bundle, Wheel, parse_wheel
from ..host import Host
from ..media import CHECKSUMS, parse_checksums, sha256_of
from ..torch_stack import ALLOW_FLAG, pairs_for, release_of
from .fetch import Fetcher, RemoteFile, check_url, megabytes
from .media_folder import MediaFolder
from .os_systems import OsRequest, Repository, known_repositories, os_packages, parse_installed, parse_repository
from .python_index import PythonIndex, needs_of, read_constraints
from .signatures import Signatures
from .vendor_files import VendorFile, VendorRequest, check_request, vendor_files


@dataclass
class Report:
    """What is told at the end."""

    folder: str
    files: List[Dict[str, Any]] = field(default_factory=list)
    outstanding: List[Dict[str, str]] = field(default_factory=list)
    notes: List[str] = field(default_factory=list)


class Filling:
    """One run."""

    def __init__(
        self,
        host: Host,
        args: argparse.Namespace,
        bundle: Bundle,
        *,
        fetcher: Fetcher,
        signatures: Signatures,
        report: Report,
    ) -> None:
        self._host, self._args, self._bundle, self._fetcher = host, args, bundle, fetcher
        self._signatures, self._report = signatures, report
        self._architecture = bundle.architecture or host.architecture
        self._extra = dict(map(_pin, args.wheel or ()))

    def run(self) -> None:
        """Choose everything before the first file, then fetch. Raises what stops it."""
        args = self._args
        vendor = self._vendor_request()
        repositories = self._repositories()
        if vendor is None and not repositories and not self._extra:
            raise UsageError(
                "there is nothing to download: neither an NPU host nor an operating system is named",
                remedy="Add --cann and --chip for an NPU host, --os for what its operating system may lack, or both.",
            )
        if not args.media:
            raise UsageError("no folder is named", remedy="Add --media FOLDER.")
        index = PythonIndex(self._fetcher, check_url(args.index, "--index"))
        wheels = self._first_wheels(index, vendor)
        packages: List[RemoteFile] = []
        if repositories:
            self._host.say("reading the repositories of the operating system")
            request = OsRequest(self._bundle.pythons, self._architecture, vendor is not None, args.kernel)
            installed = _read_installed(args.installed)
            chosen, notes = os_packages(repositories, request, installed, self._fetcher, self._signatures)
            packages = [package.file for package in chosen]
            self._report.notes += notes
        with MediaFolder(Path(args.media)).open() as folder:
            for number, file in enumerate(packages, 1):
                self._take(folder, file, "os", f"{number}/{len(packages)}")
            self._take_wheels(folder, index, wheels)
            gone = folder.drop_others({entry["file"] for entry in self._report.files})
            self._report.notes += [
                f"{name} of an earlier download is not wanted any more and was removed" for name in gone
            ]
            if vendor is not None:
                self._vendor(folder, vendor_files(vendor))

    def _vendor_request(self) -> Optional[VendorRequest]:
        args = self._args
        if args.cann is None:
            if args.chip or args.driver or args.firmware:
                raise UsageError("--chip, --driver and --firmware are of an NPU host", remedy="Add --cann VERSION.")
            return None
        if args.chip is None:
            raise UsageError("--cann is there and --chip is not", remedy="Add --chip, such as 910b.")
        request = VendorRequest(
            self._architecture, args.chip.lower(), args.cann, args.driver, args.firmware, has_nnal=args.nnal
        )
        self._report.notes += check_request(request, brings_driver=not args.has_driver)
        return request

    def _repositories(self) -> Sequence[Repository]:
        args = self._args
        if args.os_repository:
            return [parse_repository(text, self._architecture) for text in args.os_repository]
        return known_repositories(args.os, self._architecture) if args.os else ()

    def _first_wheels(self, index: PythonIndex, vendor: Optional[VendorRequest]) -> Dict[str, List[RemoteFile]]:
        """Return the wheels by name, one for each Python of the bundle: torch_npu, and what --wheel names."""
        wanted = dict(self._extra)
        if vendor is not None and "torch-npu" not in wanted:
            wanted["torch-npu"] = self._torch_npu(vendor.cann)
        return {name: self._wheels(index, name, version) for name, version in wanted.items()}

    def _wheels(self, index: PythonIndex, name: str, version: str) -> List[RemoteFile]:
        return [index.wheel(name, version, python, self._architecture) for python in self._bundle.pythons]

    def _torch_npu(self, cann: str) -> str:
        """Return the torch_npu that the vendor pairs with this CANN and the torch of the bundle."""
        torches = sorted({release_of(wheel.version) for wheel in self._own_wheels() if wheel.name == "torch"})
        pairs = pairs_for(cann)
        found = [row["torch_npu"] for row in pairs if row["torch"] in torches]
        if found:
            return found[0]
        listed = ", ".join(f"torch {row['torch']}" for row in pairs) or "none that is known"
        if self._args.allow_unverified and torches:
            return torches[0]
        raise PreflightFailed(
            f"the bundle holds torch {', '.join(torches) or 'in no version'}; the vendor pairs CANN {cann} with "
            f"{listed}",
            remedy="Make the bundle with `packaging/bundle.sh --torch VERSION`, or name a torch_npu by "
            f"`--wheel torch_npu==VERSION`; {ALLOW_FLAG} takes that of the same version.",
        )

    def _own_wheels(self) -> List[Wheel]:
        return self._bundle.wheels()

    def _take_wheels(self, folder: MediaFolder, index: PythonIndex, wheels: Dict[str, List[RemoteFile]]) -> None:
        """Take wheels, and whatever they need that neither bundle nor media have; that is known only from the wheel."""
        there = {wheel.name for wheel in self._own_wheels()} | set(wheels)
        pins = read_constraints(self._bundle.read("constraints.txt"))
        waiting: List[Tuple[str, List[RemoteFile]]] = list(wheels.items())
        while waiting:
            name, files = waiting.pop(0)
            for file in {file.name: file for file in files}.values():
                self._take(folder, file, "wheels", name)
                for need, versions in needs_of(folder.path / "wheels" / file.name).items():
                    if need in there:
                        continue
                    if need not in pins:
                        raise PreflightFailed(
                            f"{file.name} needs {need}{versions}, which the bundle does not hold",
                            remedy=f"Add --wheel {need}==VERSION.",
                        )
                    there.add(need)
                    waiting.append((need, self._wheels(index, need, pins[need])))

    def _take(self, folder: MediaFolder, file: RemoteFile, below: str, number: str) -> None:
        size = f", {megabytes(file.size)}" if file.size else ""
        is_new = folder.fetch(self._fetcher, file, below)
        self._host.say(f"[{number}] {file.name}{size}: {'fetched and proven' if is_new else 'there already, proven'}")
        name = f"{below}/{file.name}"
        self._report.files.append({"file": name, "sha256": file.sha256, "is_new": is_new})

    def _vendor(self, folder: MediaFolder, files: Sequence[VendorFile]) -> None:
        """Prove what an operator has put there, or fetch it from a folder of the site; name the rest."""
        mirror: Dict[str, str] = {}
        url = check_url(self._args.vendor_url, "--vendor-url") if self._args.vendor_url else None
        if url is not None:
            mirror = self._mirror_sums(url)
        for file in files:
            if file.name in mirror:
                self._take(folder, RemoteFile(f"{url}/{file.name}", file.name, mirror[file.name]), "", "vendor")
                continue
            why = self._lack(folder, file)
            if why is None:
                self._report.files.append({"file": file.name, "sha256": folder.sums()[file.name], "is_new": False})
            else:
                self._report.outstanding.append({"file": file.name, "page": file.page, "why": why})

    def _mirror_sums(self, url: str) -> Dict[str, str]:
        try:
            return parse_checksums(self._fetcher.document(f"{url}/{CHECKSUMS}").decode("utf-8", "replace").splitlines())
        except FileNotFoundError as error:
            raise HostError(
                f"--vendor-url has no {CHECKSUMS}",
                remedy="Put the vendor's checksums there, `<sha256>  <file>` a line.",
            ) from error

    def _lack(self, folder: MediaFolder, file: VendorFile) -> Optional[str]:
        """Return what is wrong with a file that the operator brings, None when it is there and proven."""
        path, wanted = folder.path / file.name, folder.sums().get(file.name)
        if not path.is_file():
            return f"not there; the page gives it behind a login, maybe within {file.archive}"
        if wanted is None:
            return "there, and not in SHA256SUMS; copy its sha256 from the page, do not compute it from what came"
        seen = sha256_of(str(path))
        if seen != wanted:
            return f"there and corrupt: its sha256 is {seen}, SHA256SUMS says {wanted}; fetch it again"
        return None


def _read_installed(path: Optional[str]) -> Optional[Dict[str, str]]:
    if path is None:
        return None
    try:
        return parse_installed(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--installed is `{path}`, which cannot be read: {error.strerror}") from error


def _pin(text: str) -> Tuple[str, str]:
    wheel = parse_wheel("{}-{}-py3-none-any.whl".format(*text.replace("-", "_").partition("==")[::2]))
    if wheel is None or "==" not in text:
        raise UsageError(f"--wheel is `{text}`", remedy="Write NAME==VERSION, such as torch_npu==2.9.0.post2.")
    return wheel.name, wheel.version
