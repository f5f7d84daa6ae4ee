"""
The vendor's ACL sample (ResNet-50 inference in C++): found, copied, built with its own CMakeLists.txt, and run.

A sample is a folder with src/CMakeLists.txt, a converted model (model/*.om) and inputs (data/*); the program is built
to out/main and runs from out. Nothing is written into the vendor's folder.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import List, Mapping, Optional, Tuple

from ascendd.host.command import CommandOutcome, RunCommand, run_command
from ascendd.host.files import HostFiles
from ascendd.host.libraries import loader_environ
from ascendd.host.tool import find_tool
from ascendd.host.version_files import ARCHITECTURES, DEFAULT_ROOT

# Every release of the sample ends its output so when the inference went well.
SUCCESS = re.compile(r"\[INFO\]\s*execute sample success", re.IGNORECASE)
BUILD_TIMEOUT_S = 120.0
RUN_TIMEOUT_S = 60.0
_NAMES = ("resnet50_imagenet_classification", "sampleResnetQuickStart", "acl_execute_resnet50")
_BELOW = ("", "cplusplus/level2_simple_inference/1_classification/", "inference/modelInference/", "acl/")


@dataclass(frozen=True)
class VendorSampleOutcome:
    """What became of it: `step` is configure, build or run; `lines` are its last ones."""

    step: str
    status: int
    is_success: bool
    lines: Tuple[str, ...]


def find_sample(files: HostFiles, root: str) -> Tuple[Optional[str], str]:
    """Return the folder of a sample that can be run, or None and what is missing. `root` is CANN's."""
    bases = [f"{root}/samples", f"{DEFAULT_ROOT}/samples", "/opt/ascend/samples", "/home/HwHiAiUser/samples"]
    incomplete = ""
    for folder in (f"{base}/{below}{name}" for base in bases for below in _BELOW for name in _NAMES):
        for place in (folder, folder + "/cpp"):
            if not files.exists(f"{place}/src/CMakeLists.txt"):
                continue
            if files.list_if_possible(f"{place}/model", "*.om"):
                return place, ""
            incomplete = f"{place} has no converted model (model/*.om)"
    return None, incomplete or "the vendor's samples are not installed"


def run_vendor_sample(
    files: HostFiles, environ: Mapping[str, str], sample: str, root: str, *, run: RunCommand, patience: float = 1.0
) -> Optional[VendorSampleOutcome]:
    """Build a copy and run it; None where CMake or make are missing. Raises ProbeTimeout or ProbeUnavailable."""
    tools = [find_tool(name, files, environ) for name in ("cmake", "make")]
    if None in tools:
        return None
    cmake, make = (str(tool) for tool in tools)
    with tempfile.TemporaryDirectory(prefix="ascendd-vendor-sample-") as folder:
        copy = Path(folder) / "sample"
        shutil.copytree(files.real(sample), copy)
        # The sample's CMakeLists.txt writes ../out, seen from its source or from build/intermediates/host.
        build = copy / "build" / "intermediates" / "host"
        build.mkdir(parents=True, exist_ok=True)
        (copy / "out").mkdir(exist_ok=True)
        variables = {**environ, **_build_variables(files, root)}
        configure = [cmake, "-S", str(copy / "src"), "-B", str(build), "-DCMAKE_SKIP_RPATH=TRUE"]
        for step, argv in (("configure", configure), ("build", [make, "-C", str(build)])):
            done = run(argv, BUILD_TIMEOUT_S * patience, variables)
            if done.status != 0:
                return _outcome(step, done)
        program = next((path for path in sorted(copy.rglob("main")) if path.is_file()), None)
        if program is None:
            return VendorSampleOutcome("build", 0, is_success=False, lines=("the build wrote no program named main",))
        argv = ["/bin/sh", "-c", 'cd "$1" && exec "$2"', "sh", str(copy / "out"), str(program)]
        return _outcome("run", run_command(argv, RUN_TIMEOUT_S * patience, loader_environ(files, environ)))


def _build_variables(files: HostFiles, root: str) -> Mapping[str, str]:
    stubs = [f"{root}/{arch}-linux/devlib" for arch in ARCHITECTURES] + [f"{root}/runtime/lib64/stub", f"{root}/lib64"]
    stub = next((folder for folder in stubs if files.is_dir(folder)), f"{root}/lib64")
    return {"DDK_PATH": files.real(root), "NPU_HOST_LIB": files.real(stub)}


def _outcome(step: str, outcome: CommandOutcome) -> VendorSampleOutcome:
    text = outcome.stdout + "\n" + outcome.stderr
    lines: List[str] = [line.strip() for line in text.splitlines() if line.strip()]
    is_success = step == "run" and outcome.status == 0 and SUCCESS.search(outcome.stdout) is not None
    return VendorSampleOutcome(step, outcome.status, is_success, tuple(lines[-6:]))
