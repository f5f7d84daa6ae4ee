"""
A small C program of ours against CANN's headers and libraries, compiled and run: what an engine written in C++ needs.

The vendor's own sample (ResNet-50 inference) takes more, a model and CMake, and is in vendor_sample.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import List, Mapping, Optional, Sequence, Tuple

from ascendd.errors import ProbeUnavailable
from ascendd.host.command import CommandOutcome, RunCommand, run_command
from ascendd.host.files import HostFiles
from ascendd.host.libraries import find_library, loader_environ
from ascendd.host.tool import find_tool
from ascendd.host.version_files import ARCHITECTURES

SOURCE = Path(__file__).resolve().parent / "data" / "acl_round_trip.c"
SUCCESS = "ascendd-acl-sample: OK"
COMPILERS = ("cc", "gcc", "clang")
COMPILE_TIMEOUT_S = 60.0
RUN_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class SampleKit:
    """What it takes to compile: host paths of a compiler, the folder of acl/acl.h, and libascendcl."""

    compiler: str
    include: str
    library: str


@dataclass(frozen=True)
class SampleOutcome:
    """What became of the sample. `calls` are (call, code) as it printed them; `step` is compile or run."""

    step: str
    status: int
    calls: Tuple[Tuple[str, int], ...]
    changed_at: Optional[int]
    said: str

    @property
    def is_success(self) -> bool:
        """Whether it said its success line and ended with 0."""
        return self.step == "run" and self.status == 0 and self.said == SUCCESS

    @property
    def failed_call(self) -> Optional[Tuple[str, int]]:
        """The call that did not return 0, or the last one that was begun before it died."""
        return next(((name, code) for name, code in self.calls if code != 0), None)


def find_kit(
    files: HostFiles, environ: Mapping[str, str], root: str, compilers: Sequence[str] = COMPILERS
) -> Tuple[Optional[SampleKit], str]:
    """Return the kit for the toolkit at `root`, or None and what is missing."""
    folders = [f"{root}/include", *(f"{root}/{arch}-linux/include" for arch in ARCHITECTURES)]
    include = next((folder for folder in folders if files.exists(f"{folder}/acl/acl.h")), None)
    compiler = next(filter(None, (find_tool(name, files, environ) for name in compilers)), None)
    library = find_library("libascendcl.so", files, environ).found
    if include is None:
        return None, f"no acl/acl.h below {root}: the toolkit is not installed with its headers"
    if compiler is None:
        return None, f"no compiler ({', '.join(compilers)})"
    if library is None:
        return None, "libascendcl.so is not on the library path"
    return SampleKit(compiler, include, library), ""


def run_sample(
    files: HostFiles, environ: Mapping[str, str], kit: SampleKit, device: int, *, run: RunCommand, patience: float = 1.0
) -> SampleOutcome:
    """Compile the sample in a new folder and run it on logical `device`. Raises ProbeTimeout or ProbeUnavailable."""
    with tempfile.TemporaryDirectory(prefix="ascendd-sample-") as folder:
        program = f"{folder}/acl_round_trip"
        argv = [
            kit.compiler, "-O1", "-Wall", str(SOURCE), "-I", files.real(kit.include), files.real(kit.library),
            "-Wl,--allow-shlib-undefined", "-o", program,
        ]  # fmt: skip
        compiled = run(argv, COMPILE_TIMEOUT_S * patience, environ)
        if compiled.status != 0:
            return _outcome("compile", compiled)
        if not Path(program).exists():
            raise ProbeUnavailable(f"{kit.compiler} said nothing and wrote no program")
        # The program is ours and lies outside the host's root, so no runner looks it up.
        return _outcome(
            "run", run_command([program, str(device)], RUN_TIMEOUT_S * patience, loader_environ(files, environ))
        )


def _outcome(step: str, outcome: CommandOutcome) -> SampleOutcome:
    lines: List[str] = [line.strip() for line in outcome.stdout.splitlines() if line.strip()]
    calls = [(m[1], int(m[2])) for m in (re.fullmatch(r"(acl[\w ]+)=(-?\d+)", line) for line in lines) if m]
    changed = next((int(m[1]) for m in (re.fullmatch(r"changed=(\d+)", line) for line in lines) if m), None)
    said = next((line for line in reversed(lines) if line == SUCCESS), "")
    errors = [line.strip() for line in outcome.stderr.splitlines() if line.strip()]
    if not said:
        said = next((line for line in errors if "error" in line), (errors or lines or ["nothing"])[-1])
    return SampleOutcome(step, outcome.status, tuple(calls), changed, said)
