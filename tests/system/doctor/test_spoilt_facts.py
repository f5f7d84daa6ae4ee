"""What cannot be read is never a pass: every fact of a healthy host spoilt in every way, and the checks that read it."""

import fnmatch
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from corruption import Fact, answers_about, facts_read
from fake_machine import ASCEND, FakeMachine
from host_fault_cases import instance

from ascendd.preflight.check import Verdict

pytestmark = pytest.mark.system

ELSEWHERE = "npu-presence reads the bus, and says so; this check asks only whether this is an NPU host"
USUAL_PLACE = "the vendor's usual folder is looked into instead; driver-version and npu-presence say so"
HALF = "what this check reads is in the half that is left"
WHOLE = "the kernel gives such a file whole or not at all"
# (check, fact, kinds that may pass, why). `*` is any. All others must not stay PASS.
IRRELEVANT = (
    ("host-memory", "* /sys/bus/pci/*", "*", ELSEWHERE),
    ("leftover-processes", "* /sys/bus/pci/*", "*", ELSEWHERE),
    ("log-disk", "* /sys/bus/pci/*", "*", ELSEWHERE),
    ("ulimits", "* /sys/bus/pci/*", "*", ELSEWHERE),
    ("cann-*", "file /etc/ascend_install.info", "*", USUAL_PLACE),
    ("nnal", "file /etc/ascend_install.info", "*", USUAL_PLACE),
    ("python-stack", "file /etc/ascend_install.info", "*", USUAL_PLACE),
    ("vendor-libraries", "file /etc/ascend_install.info", "*", USUAL_PLACE),
    ("acl-*", "file /etc/ascend_install.info", "*", USUAL_PLACE),
    ("hccl-*", "file /etc/ascend_install.info", "*", USUAL_PLACE),
    ("*", "file /etc/ascend_install.info", "truncated", "drivers of before 24.1 write no status at its end"),
    ("*", "file /proc/*", "truncated", WHOLE),
    ("*", "file /sys/*", "truncated", WHOLE),
    ("*", "file */firmware/version.info", "truncated", HALF),
    ("*", "file */ascend_kernels_install.info", "truncated", HALF),
    ("nnal", "file */atb/*/version.info", "truncated", HALF),
    ("*", "tool npu-smi info -t board -i *", "truncated", HALF),
    ("hccl-tls", "tool hccn_tool -i * -tls -g", "truncated", HALF),
    ("driver-firmware", "tool npu-smi info -t board -i *", "*", "firmware-version says that what runs is not known"),
    ("driver-version", "tool npu-smi info", "*", "npu-presence says so; what is on disk is judged without it"),
    ("npu-presence", "tool systemctl *", "*", "service-environment says so; only ACL's count needs the environment"),
    ("driver-firmware", "file */operation.log", "*", "pending-reboot says so; the versions are in other files"),
    ("firmware-version", "file */operation.log", "*", "pending-reboot says so; the version is in another file"),
    ("pending-reboot", "file */operation.log", "empty,truncated", "logs are rotated"),
    ("*", "file */METADATA", "*", "the version stands in the name of the folder as well"),
    ("kernel-log", "tool journalctl *", "*", "dmesg is read instead"),
    ("kernel-log", "tool dmesg", "truncated", "a ring buffer begins and ends where it likes"),
    ("cpu-governor", "file */scaling_driver", "*", "it only excuses the governor powersave"),
    ("*", "file /etc/ld.so.conf*", "*", "a folder that is not named is not searched; what lies in it is then missing"),
    ("host-memory", "file /models/*", "*", "model-artefact says so"),
    ("host-memory", "file */memory.stat", "*", "then more counts as used than is"),
    ("host-memory", "file /proc/self/cgroup", "empty", "so it is without control groups"),
    ("*", "file /proc/[0-9]*", "*", "a process that ends meanwhile reads so"),
    ("leftover-processes", "list /proc/[0-9]*/fd", "*", "it looks at no open file"),
)  # fmt: skip
# Read by libraries of ours, not through the door of the host's files; root reads them whatever their mode.
OPENED_BY_NAME = {
    **{f"/models/qwen2/{name}": {"model-artefact", "plan-fits"} for name in ("config.json", "model.safetensors", "tokenizer.json")},
    **{f"/{ASCEND}/ascend-toolkit/8.2.RC1/lib64/{name}": {"vendor-libraries"} for name in ("libascendcl.so", "libhccl.so")},
    f"/{ASCEND}/driver/lib64/driver/libascend_hal.so": {"vendor-libraries"},
}  # fmt: skip


@pytest.fixture
def server(tmp_path: Path, acl_library: Path) -> FakeMachine:
    """A healthy machine with what many hosts have besides; without a compiler, whose sample has tests of its own."""
    machine = FakeMachine(tmp_path / "host", acl_library)
    machine.remove("usr/bin/gcc")
    group = "sys/fs/cgroup/system.slice/sshd.service"
    for path, text in {
        "sys/kernel/mm/transparent_hugepage/defrag": "always defer defer+madvise [madvise] never\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver": "cppc_cpufreq\n",
        "etc/ld.so.conf": "include ld.so.conf.d/*.conf\n",
        "etc/ld.so.conf.d/ascend.conf": "/usr/local/Ascend/driver/lib64\n",
        "etc/ascendd/policy.json": '{"cann_minimum": "8.0.0"}\n',
        "proc/self/cgroup": "0::/system.slice/sshd.service\n",
        f"{group}/memory.max": f"{1000 * 2**30}\n",
        f"{group}/memory.current": f"{2**30}\n",
        f"{group}/memory.stat": "inactive_file 0\n",
    }.items():
        machine.write(path, text)
    machine.process(77, "sshd")
    return machine


def false_passes(machine: FakeMachine, *, one_of_many_alike: bool) -> Iterator[str]:
    """Yield `check: fact: kind: what it said` for each check that still passes, and no reason is known."""
    request = {**instance(machine, parallel={"tensor_parallel_size": 4}), "as_service": True}
    facts = facts_read(machine, request)
    facts.update({Fact("file", path): readers for path, readers in OPENED_BY_NAME.items()})
    seen: set[str] = set()
    for fact, readers in sorted(facts.items()):
        alike = re.sub(r"\d+", "N", re.sub(r"[0-9a-f]{4}:[0-9a-f]{2}:\d\d\.\d", "BUS", str(fact)))
        if one_of_many_alike and alike in seen:
            continue
        seen.add(alike)
        for kind in fact.kinds():
            if kind == "denied" and fact.name in OPENED_BY_NAME:
                continue
            for check, result in answers_about(machine, fact, kind, readers, request).items():
                if result.verdict is Verdict.PASS and not reasons(check, fact, kind):
                    yield f"{check}: {fact}: {kind}: {result.summary}"
    assert len(facts) > 100, "so few facts are not those of a whole host"


def reasons(check: str, fact: Fact, kind: str) -> list[str]:
    """Return why the check may pass all the same; none is known for most."""
    return [
        why
        for of, name, kinds, why in IRRELEVANT
        if fnmatch.fnmatch(check, of)
        and fnmatch.fnmatch(str(fact), name)
        and (kinds == "*" or kind in kinds.split(","))
    ]


def test_what_cannot_be_read_is_no_pass(server: FakeMachine) -> None:
    """One fact of each kind, spoilt in every way; whoever reads it warns, fails, cannot check, or is skipped."""
    assert list(false_passes(server, one_of_many_alike=True)) == []


@pytest.mark.slow
def test_no_chip_no_bus_address_and_no_cpu_hides_what_cannot_be_read(server: FakeMachine) -> None:
    """The same of every fact, of all chips and CPUs."""
    assert list(false_passes(server, one_of_many_alike=False)) == []
