"""Our C sample and the vendor's, compiled by a real compiler against the stand-in library, and run."""

from pathlib import Path

import pytest
from fake_machine import ASCEND, FakeMachine

from ascendd.preflight.check import CheckResult, Verdict
from ascendd.preflight.context import CheckContext, CheckRequest
from ascendd.preflight.discover import find_checks

pytestmark = pytest.mark.system

SAMPLE = f"{ASCEND}/samples/cplusplus/level2_simple_inference/1_classification/resnet50_imagenet_classification"
MAIN = """#include "acl/acl.h"
#include <stdio.h>
int main(void) {
    FILE *model = fopen("../model/resnet50.om", "rb");
    if (!model || aclInit(0) || aclrtSetDevice(0)) { printf("[ERROR] init resource failed\\n"); return 1; }
    printf("[INFO]  model execute success\\n[INFO]  execute sample success\\n");
    return aclFinalize();
}
"""
# CMake is not everywhere; what the check does with it is the same with a script that compiles.
CMAKE = """while [ $# -gt 0 ]; do case $1 in -S) src=$2;; -B) build=$2;; esac; shift; done
[ -e "$src/CMakeLists.txt" ] || exit 1
printf '%s\\n' "$src" "$DDK_PATH" "$NPU_HOST_LIB" > "$build/settings"
"""
MAKE = """{ read src; read ddk; read lib; } < "$2/settings"
exec /usr/bin/gcc "$src/main.c" -I "$ddk/include" -L "$lib" -lascendcl -o "$src/../out/main"
"""


@pytest.fixture
def server(tmp_path: Path, acl_library: Path) -> FakeMachine:
    """A healthy machine."""
    return FakeMachine(tmp_path / "host", acl_library)


@pytest.fixture
def with_sample(server: FakeMachine) -> FakeMachine:
    """A machine with the vendor's sample, its model, and what builds it."""
    server.write(f"{SAMPLE}/src/CMakeLists.txt", "project(ACL_RESNET50)\n")
    server.write(f"{SAMPLE}/src/main.c", MAIN)
    server.write(f"{SAMPLE}/model/resnet50.om", "model")
    server.script("usr/bin/cmake", CMAKE)
    server.script("usr/bin/make", MAKE)
    return server


def run(server: FakeMachine, check_id: str) -> CheckResult:
    """Run one check in this process."""
    check = next(check for check in find_checks() if check.id == check_id)
    return check().run(CheckContext(CheckRequest(root=str(server.root))))


def test_our_sample_is_compiled_and_run(server: FakeMachine) -> None:
    """All its calls return 0 and it says so."""
    result = run(server, "acl-sample")

    assert (result.verdict, result.summary) == (
        Verdict.PASS,
        "compiled, opened device 0, copied both ways and compared",
    )
    assert set(result.evidence["calls"].values()) == {0}


OUR_FAULTS = {
    "a device that cannot be opened": (
        lambda m: m.setenv(FAKE_ACL_FAULT="aclrtSetDevice=507033"), Verdict.FAIL, "aclrtSetDevice returned ACL_ERROR_RT_DEV_SETUP_ERROR 507033"),
    "memory that changes": (lambda m: m.setenv(FAKE_ACL_FAULT="corrupt"), Verdict.FAIL, "first difference at byte 4097"),
    "a crash": (lambda m: m.setenv(FAKE_ACL_FAULT="aclrtMalloc=crash"), Verdict.FAIL, "it ended with signal 11 after aclrtSetDevice"),
    "a header of another time": (
        lambda m: m.edit(f"{m.toolkit}/include/acl/acl.h", "aclrtSynchronizeDevice(void)", "aclrtSynchronizeDevice(int)"),
        Verdict.FAIL, "gcc does not compile it"),
    "a library without a call": (
        lambda m: (m.remove(f"{m.toolkit}/lib64/libascendcl.so"), empty_library(m)), Verdict.FAIL, "gcc does not compile it"),
    "no headers": (lambda m: m.remove(f"{m.toolkit}/include"), Verdict.SKIPPED, "no acl/acl.h below"),
    "no compiler": (lambda m: m.remove("usr/bin/gcc"), Verdict.SKIPPED, "no compiler (cc, gcc, clang)"),
}  # fmt: skip


def empty_library(machine: FakeMachine) -> None:
    """Put a library without any call in the place of ACL's."""
    import subprocess

    source = machine.write("empty.c", "int nothing;\n")
    target = machine.root / machine.toolkit / "lib64/libascendcl.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", target, source], check=True)


@pytest.mark.parametrize("name", OUR_FAULTS)
def test_what_is_wrong_with_our_sample_is_told(server: FakeMachine, name: str) -> None:
    """The failed call has its code and name, a failed compilation the compiler's word; what is missing is skipped."""
    damage, verdict, words = OUR_FAULTS[name]
    damage(server)

    result = run(server, "acl-sample")

    assert (result.verdict, words in result.summary) == (verdict, True), result
    assert verdict is Verdict.SKIPPED or result.remedy.runbook == "ASD-D01"


def test_the_vendors_sample_is_built_in_a_copy_and_judged_by_its_success_line(with_sample: FakeMachine) -> None:
    """It passes, and nothing was written into the vendor's folder."""
    before = sorted(with_sample.root.joinpath(SAMPLE).rglob("*"))

    result = run(with_sample, "vendor-sample")

    assert (result.verdict, "execute sample success" in result.summary) == (Verdict.PASS, True), result
    assert sorted(with_sample.root.joinpath(SAMPLE).rglob("*")) == before


VENDOR_FAULTS = {
    "no success line": (lambda m: m.edit(f"{SAMPLE}/src/main.c", "execute sample success", "done"), Verdict.FAIL, "status 0 and no success line"),
    "a device that fails": (lambda m: m.setenv(FAKE_ACL_FAULT="aclrtSetDevice=507033"), Verdict.FAIL, "[ERROR] init resource failed"),
    "success, and then a bad end": (lambda m: m.setenv(FAKE_ACL_FAULT="aclFinalize=100001"), Verdict.FAIL, "ended with status"),
    "source that does not compile": (lambda m: m.edit(f"{SAMPLE}/src/main.c", "int main", "int ("), Verdict.FAIL, "build failed"),
    "no model": (lambda m: m.remove(f"{SAMPLE}/model/resnet50.om"), Verdict.SKIPPED, "has no converted model"),
    "no CMake": (lambda m: m.remove("usr/bin/cmake"), Verdict.SKIPPED, "cmake or make is not installed"),
}  # fmt: skip


@pytest.mark.parametrize("name", VENDOR_FAULTS)
def test_what_is_wrong_with_the_vendors_sample_is_told(with_sample: FakeMachine, name: str) -> None:
    """Neither a status of 0 nor the success line alone is enough."""
    damage, verdict, words = VENDOR_FAULTS[name]
    damage(with_sample)

    result = run(with_sample, "vendor-sample")

    assert (result.verdict, words in result.summary) == (verdict, True), result
