"""Where the dynamic linker would find a vendor library, given the service's environment. Stub copies are told apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Tuple

from ascendd.host.files import HostFiles
from ascendd.host.version_files import ARCHITECTURES, DEFAULT_ROOT, cann_roots

# Folders of libraries made for compiling only; one of them at run time gives ACL error 100039.
STUB_MARKERS = ("/devlib", "/lib64/stub")


@dataclass(frozen=True)
class LibrarySearch:
    """`found` is what would be loaded; `stub_first` a stub that stands before it; `elsewhere` a copy off the path."""

    name: str
    found: Optional[str]
    stub_first: Optional[str]
    elsewhere: Optional[str]


def find_library(name: str, files: HostFiles, environ: Mapping[str, str]) -> LibrarySearch:
    """Search LD_LIBRARY_PATH, then ld.so.conf, as the linker does; then the vendor's folders, for advice."""
    hits = [folder + "/" + name for folder in search_path(files, environ) if files.exists(folder + "/" + name)]
    real = next((hit for hit in hits if not is_stub(hit)), None)
    off_path = [path for path in _vendor_places(name, files, environ) if files.exists(path)]
    return LibrarySearch(
        name=name,
        found=real,
        stub_first=hits[0] if hits and is_stub(hits[0]) else None,
        elsewhere=None if real else next(iter(off_path), None),
    )


def is_stub(path: str) -> bool:
    """Tell whether `path` lies in a folder of link-time stubs."""
    return any(marker in path for marker in STUB_MARKERS)


def search_path(files: HostFiles, environ: Mapping[str, str]) -> Tuple[str, ...]:
    """Return the folders that the dynamic linker searches, in order."""
    named = [folder for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    configured: List[str] = []
    for conf in [
        "/etc/ld.so.conf",
        *("/etc/ld.so.conf.d/" + name for name in files.list_dir("/etc/ld.so.conf.d", "*.conf")),
    ]:
        lines = (line.strip() for line in (files.read_optional(conf) or "").splitlines())
        configured += [line for line in lines if line.startswith("/")]
    return tuple(dict.fromkeys(folder.rstrip("/") or "/" for folder in [*named, *configured, "/usr/lib64", "/usr/lib"]))


def loader_environ(files: HostFiles, environ: Mapping[str, str]) -> Dict[str, str]:
    """Return `environ` for a child process that loads vendor libraries; paths point below the files' root."""
    mapped = dict(environ)
    if "LD_LIBRARY_PATH" in mapped:
        folders = [folder for folder in mapped["LD_LIBRARY_PATH"].split(":") if folder]
        mapped["LD_LIBRARY_PATH"] = ":".join(files.real(folder) for folder in folders)
    return mapped


def _vendor_places(name: str, files: HostFiles, environ: Mapping[str, str]) -> List[str]:
    folders = []
    for root in cann_roots(files, environ):
        folders += [f"{root}/lib64", f"{root}/runtime/lib64", *(f"{root}/{arch}-linux/lib64" for arch in ARCHITECTURES)]
    folders += [f"{DEFAULT_ROOT}/driver/lib64{part}" for part in ("", "/common", "/driver")]
    return [f"{folder}/{name}" for folder in folders]
