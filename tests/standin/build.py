"""
Build the stand-in NPU: the real torch_npu wheel, and libraries under CANN's names that run it on this host.

    python tests/standin/build.py [FOLDER]        FOLDER is .standin in the repository unless named

FOLDER/site gets torch_npu (apart from the environment of the tests, whose torch would load it by itself), FOLDER/lib the
libraries. What is there and up to date is left alone. Needs gcc, binutils, and once the package index of pip.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

WHEEL = "torch-npu==2.13.0"
HERE = Path(__file__).resolve().parent
DEFAULT_FOLDER = HERE.parent.parent / ".standin"
LIBRARY = "libstandin.so"
# Looked up at run time by names that are in no list of needed libraries.
LOADED_LATER = ("libopapi.so",)
SYSTEM_LIBRARIES = (
    "libc.so.6",
    "libm.so.6",
    "libgcc_s.so.1",
    "libdl.so.2",
    "librt.so.1",
    "libpthread.so.0",
    "libstdc++.so.6",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
)
NO_MEANING = 207000  # ACL_ERROR_RT_FEATURE_NOT_SUPPORT


def missing(folder: Path = DEFAULT_FOLDER) -> str | None:
    """Return why the stand-in cannot be used here, or None; looks only."""
    if not (folder / "site" / "torch_npu").is_dir():
        return f"no {WHEEL} in {folder}/site; run `make standin`"
    for tool in ("gcc", "nm", "readelf"):
        if shutil.which(tool) is None:
            return f"no {tool} on PATH to build the libraries of the stand-in NPU with"
    return None


def build(folder: Path = DEFAULT_FOLDER) -> Path:
    """Bring the libraries of `folder` up to date with the sources and return it; safe in several processes at once."""
    folder = folder.resolve()
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        build_libraries(folder / "site", folder / "lib")
    return folder


def install_wheel(site: Path) -> None:
    """Install torch_npu alone into `site`; the tests' own torch serves it. Raises CalledProcessError."""
    name, version = WHEEL.split("==")
    if (site / f"{name.replace('-', '_')}-{version}.dist-info").is_dir():
        return
    print(f"installing {WHEEL} into {site}")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-qq", "--no-deps"]
    subprocess.run([*pip, "--upgrade", "--target", str(site), WHEEL], check=True)


def build_libraries(site: Path, lib: Path) -> None:
    """Compile csrc and give every symbol of the wheel that is still undefined a body, in one library of many names."""
    sources = sorted((HERE / "csrc").glob("*.[ch]"))
    key = hashlib.sha256(b"".join(path.read_bytes() for path in [*sources, Path(__file__)])).hexdigest()
    stamp = lib / "built-from"
    if stamp.exists() and stamp.read_text(encoding="ascii") == key:
        return
    print(f"building {lib / LIBRARY}")
    lib.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    objects = []
    for source in sources:
        if source.suffix == ".c":
            objects.append(lib / f"{source.stem}.o")
            flags = ["-std=gnu11", "-O1", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]
            subprocess.run(["gcc", *flags, "-c", source, "-o", objects[-1]], check=True)
    wheel = sorted(site.glob("torch_npu/**/*.so*"))
    written = {name for path in objects for name in _symbols(path, "-g", "--defined-only")}
    undefined = _undefined(wheel) - written
    rest = lib / "rest.s"
    rest.write_text(_assembler(sorted(undefined)), encoding="ascii")
    target = lib / f"{LIBRARY}.new"
    subprocess.run(
        ["gcc", "-shared", "-Wl,-soname," + LIBRARY, "-o", target, *objects, rest, "-lpthread", "-lm"], check=True
    )
    target.replace(lib / LIBRARY)
    for name in sorted(_needed(wheel) | set(LOADED_LATER)):
        link = lib / name
        link.unlink(missing_ok=True)
        link.symlink_to(LIBRARY)
    stamp.write_text(key, encoding="ascii")


def _symbols(path: Path, *flags: str) -> set[str]:
    lines = subprocess.run(["nm", *flags, path], capture_output=True, text=True, check=False).stdout.splitlines()
    return {line.split()[-1].split("@")[0] for line in lines if line.split()}


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"{name} is not installed for {sys.executable}; run this with the interpreter of the tests")
    return Path(next(iter(spec.submodule_search_locations)))


def _undefined(wheel: list[Path]) -> set[str]:
    """Return the symbols that the wheel needs and neither torch, nor the system, nor the wheel itself has."""
    torch = _package("torch")
    have: set[str] = set()
    for path in [*wheel, *torch.glob("lib/*.so*"), *torch.glob("*.so"), *map(_system_library, SYSTEM_LIBRARIES)]:
        have |= _symbols(path, "-D", "--defined-only")
    need: set[str] = set()
    for path in wheel:
        lines = subprocess.run(
            ["nm", "-D", "--undefined-only", path], capture_output=True, text=True, check=True
        ).stdout
        # Weak ones (kind w) may stay undefined.
        need |= {name.split("@")[0] for kind, name in (line.split()[-2:] for line in lines.splitlines()) if kind == "U"}
    return {name for name in need - have if not name.startswith(("Py", "_Py"))}


def _system_library(name: str) -> Path:
    found = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
    return Path(found.strip())


def _needed(wheel: list[Path]) -> set[str]:
    """Return the file names that the loader will look for and not find in the wheel, torch or the system."""
    have = {path.name for path in [*wheel, *_package("torch").glob("lib/*")]} | set(SYSTEM_LIBRARIES)
    need: set[str] = set()
    for path in wheel:
        text = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
        need |= set(re.findall(r"\(NEEDED\).*\[(.+)\]", text))
    return {name for name in need - have if not name.startswith("ld-linux")}


def _assembler(names: list[str]) -> str:
    """
    Give each name a body that says it has no meaning here: a C function with an error, whatever it takes.

    Assembler, since many are mangled C++ names. C functions go through standin_absent, so that faults hit them, too.
    """
    is_x86 = platform.machine() == "x86_64"
    code, text = ["\t.text"], ["\t.section .rodata"]
    for index, name in enumerate(names):
        code.append(f'\t.globl "{name}"\n\t.type "{name}",%function\n"{name}":')
        if not re.fullmatch(r"(acl|rt|Hccl)[A-Za-z0-9_]+", name):
            code.append(f"\tmovl ${NO_MEANING}, %eax\n\tret" if is_x86 else _ARM_NO_MEANING)
            continue
        text.append(f'.Lname{index}:\t.asciz "{name}"')
        if is_x86:
            code.append(f"\tleaq .Lname{index}(%rip), %rdi\n\tjmp standin_absent@PLT")
        else:
            code.append(f"\tadrp x0, .Lname{index}\n\tadd x0, x0, :lo12:.Lname{index}\n\tb standin_absent")
    return "\n".join([*code, *text, '\t.section .note.GNU-stack,"",%progbits', ""])


_ARM_NO_MEANING = f"\tmovz w0, #{NO_MEANING & 0xFFFF}\n\tmovk w0, #{NO_MEANING >> 16}, lsl #16\n\tret"


def main(folder: Path) -> None:
    """Install, build, or say what is missing: without the stand-in the other tests still run, and CI fails on a skip."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        install_wheel(folder.resolve() / "site")
    except subprocess.CalledProcessError:
        print(f"{WHEEL} could not be installed for this interpreter and platform", file=sys.stderr)
    reason = missing(folder)
    if reason:
        print(f"tests on the stand-in NPU will skip: {reason}", file=sys.stderr)
    else:
        build(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_FOLDER)
