"""Environment, ACL and host memory, judged over tables."""

from dataclasses import replace

import pytest
from ascendd.checks import acl_runtime, host_memory, service_environment, vendor_libraries
from ascendd.checks.host_memory import Need
from ascendd.checks.service_environment import Surroundings
from ascendd.checks.vendor_libraries import REQUIRED_LIBRARIES, LibraryReport

from ascendd.errors import PlanDoesNotFit
from ascendd.host.acl import AclOutcome
from ascendd.host.libraries import LibrarySearch
from ascendd.host.memory import HostMemory
from ascendd.host.service_environment import ServiceEnvironment
from ascendd.preflight.check import Verdict

PASS, WARN, FAIL = Verdict.PASS, Verdict.WARN, Verdict.FAIL
GIB = 2**30
VARIABLES = dict.fromkeys(
    ("ASCEND_HOME_PATH", "ASCEND_OPP_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_AICPU_PATH", "PYTHONPATH"), "/opt/cann"
)
LIBRARIES = tuple(LibrarySearch(name, f"/opt/{name}", None, None) for name in REQUIRED_LIBRARIES)
SOUND = Surroundings(ServiceEnvironment("the unit", VARIABLES), ())


def without(*names: str) -> ServiceEnvironment:
    """The environment less some variables."""
    return ServiceEnvironment("the unit", {key: value for key, value in VARIABLES.items() if key not in names})


ENVIRONMENTS = [
    (SOUND, PASS, "CANN's variables in the unit"),
    (replace(SOUND, environment=without("ASCEND_OPP_PATH")), FAIL, "ASCEND_OPP_PATH not set in the unit"),
    (replace(SOUND, environment=without("PYTHONPATH")), WARN, "PYTHONPATH not set in the unit"),
    (replace(SOUND, absent=(("PYTHONPATH", "/gone"),)), WARN, "PYTHONPATH names /gone"),
    (
        replace(SOUND, environment=replace(SOUND.environment, missing_files=("/etc/x.env",))),
        FAIL,
        "EnvironmentFile /etc/x.env cannot be read",
    ),
    (replace(SOUND, environment=replace(SOUND.environment, notes=("unit not found",))), WARN, "unit not found"),
]


@pytest.mark.parametrize(("found", "verdict", "words"), ENVIRONMENTS)
def test_service_environment(found: Surroundings, verdict: Verdict, words: str) -> None:
    """Missing variables fail; what leads nowhere warns."""
    result = service_environment.judge(found)

    assert (result.verdict, words in result.summary) == (verdict, True), result.summary


FOUND = LibraryReport("the unit", LIBRARIES, {}, ())
LIBRARY_REPORTS = [
    (FOUND, PASS, "6 libraries, and what they need, in the unit"),
    (replace(FOUND, searches=(LibrarySearch("libhccl.so", None, None, "/opt/cann/lib64/libhccl.so"),)), FAIL, "a copy is at /opt/cann/lib64"),
    (replace(FOUND, searches=(LibrarySearch("libascendcl.so", "/x", "/opt/cann/devlib/libascendcl.so", None),)), FAIL, "100039"),
    (replace(FOUND, unresolved=(("libge_runner.so", "libmmpa.so"),)), FAIL, "libge_runner.so needs libmmpa.so, which is not"),
    (replace(FOUND, broken={"/x": "/x is not a whole shared library"}), FAIL, "/x is not a whole shared library"),
]  # fmt: skip


@pytest.mark.parametrize(("report", "verdict", "words"), LIBRARY_REPORTS)
def test_vendor_libraries(report: LibraryReport, verdict: Verdict, words: str) -> None:
    """What is missing, needed and missing, broken, or a stub, fails."""
    result = vendor_libraries.judge(report)

    assert (result.verdict, words in result.summary) == (verdict, True), result.summary


@pytest.mark.parametrize(
    ("value", "verdict"),
    [("0", PASS), ("0,1,10", PASS), ("1,0", WARN), ("0, 1", WARN), ("0,0", WARN), ("a", WARN), ("0,", WARN)],
)
def test_the_form_of_visible_devices(value: str, verdict: Verdict) -> None:
    """The runtime cuts the list at the first id that it does not like, without a word."""
    environment = ServiceEnvironment("the unit", {**VARIABLES, "ASCEND_RT_VISIBLE_DEVICES": value})

    assert service_environment.judge(replace(SOUND, environment=environment)).verdict is verdict


def test_no_secret_of_the_environment_is_shown() -> None:
    """Only the vendor's variables become evidence."""
    environment = ServiceEnvironment("the unit", {**VARIABLES, "HF_TOKEN": "hf_secret"})

    assert "hf_secret" not in str(service_environment.judge(replace(SOUND, environment=environment)))


OUTCOME = AclOutcome("/opt/cann/lib64/libascendcl.so", 2, "Ascend910B3", 58 * GIB, 61 * GIB)
OUTCOMES = [
    (OUTCOME, PASS, "device 0 (Ascend910B3): 2 MiB there and back, 58.0 of 61.0 GiB free"),
    (replace(OUTCOME, count=0), FAIL, "ACL counts no device"),
    (replace(OUTCOME, library="/opt/cann/devlib/libascendcl.so"), FAIL, "a stub for compiling"),
    (
        replace(OUTCOME, failed_step="aclrtSetDevice", code=507033, text="EE9999"),
        FAIL,
        "ACL_ERROR_RT_DEV_SETUP_ERROR 507033: EE9999",
    ),
    (replace(OUTCOME, failed_step="aclrtSetDevice", code=999999), FAIL, "aclrtSetDevice failed: code 999999"),
    (
        replace(OUTCOME, failed_step="load", code=-1, text="libge.so: cannot open"),
        FAIL,
        "load failed: libge.so: cannot open",
    ),
]


@pytest.mark.parametrize(("outcome", "verdict", "words"), OUTCOMES)
def test_acl_runtime(outcome: AclOutcome, verdict: Verdict, words: str) -> None:
    """The failed call is named with its code, the code with its name, cause and remedy."""
    result = acl_runtime.judge(outcome, 0)

    assert (result.verdict, words in result.summary) == (verdict, True), result.summary


def test_a_known_acl_code_brings_its_cause() -> None:
    """The vendor's table says why and what to do."""
    result = acl_runtime.judge(replace(OUTCOME, failed_step="aclInit", code=207006), 0)

    assert "HwHiAiUser" in result.remedy.text


MEMORY = HostMemory(64 * GIB, 40 * GIB, None, None, None)
NEED = Need(30 * GIB, {"weights": 28 * GIB, "KV cache": 2 * GIB}, "bfloat16")
LIMITED = HostMemory(64 * GIB, 40 * GIB, 32 * GIB, 20 * GIB, "/sys/fs/cgroup/x")
MEMORIES = [
    (MEMORY, NEED, False, False, PASS, "30.0 GiB needed (28.0 GiB weights + 2.0 GiB KV cache, bfloat16), 40.0 GiB free"),
    (MEMORY, None, False, False, PASS, "40.0 GiB free; no model to compare with"),
    (replace(MEMORY, available_bytes=GIB // 2), None, False, False, WARN, "only 0.5 GiB free"),
    (replace(MEMORY, available_bytes=20 * GIB), NEED, False, False, FAIL, "30.0 GiB needed"),
    (LIMITED, NEED, False, False, FAIL, "20.0 GiB free in /sys/fs/cgroup/x of 32.0 GiB"),
    (replace(MEMORY, available_bytes=20 * GIB), NEED, False, True, PASS, "the instance runs; it takes 30.0 GiB of 64.0 GiB"),
    (LIMITED, replace(NEED, num_bytes=33 * GIB), False, True, FAIL, "33.0 GiB needed"),
    (replace(MEMORY, total_bytes=48 * GIB), NEED, True, False, WARN, "less than twice the 28.0 GiB of weights"),
    (MEMORY, NEED, True, False, PASS, "30.0 GiB needed"),
    (MEMORY, replace(NEED, refusal=PlanDoesNotFit("99 KV blocks do not fit")), False, False, FAIL, "99 KV blocks do not fit"),
]  # fmt: skip


@pytest.mark.parametrize(("memory", "need", "on_device", "is_running", "verdict", "words"), MEMORIES)
def test_host_memory(memory, need, on_device: bool, is_running: bool, verdict: Verdict, words: str) -> None:
    """The need against what is free and what the control group allows; a running instance explains its own use."""
    result = host_memory.judge(memory, need, on_device=on_device, is_running=is_running)

    assert (result.verdict, words in result.summary) == (verdict, True), result.summary
    assert (result.remedy is None) == (verdict is PASS)
