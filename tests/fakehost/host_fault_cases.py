"""
More broken facts, one at a time: the Python stack, the account of the service, and the host below it. As in fault_cases:
one check speaks, with this verdict, code, finding and remedy; no other fails, warns or breaks.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from fake_machine import GIB, SITE, TIMEDATECTL, FakeMachine
from fault_cases import JOURNAL, Case, error, fail, listen, nnal, permit, warn

MIB = 2**20
# Qwen2-7B, the model of the account.
QWEN2_7B = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584,
    "intermediate_size": 18944, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
    "max_position_embeddings": 32768, "dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip


def instance(machine: FakeMachine, **sections: dict[str, Any]) -> dict[str, object]:
    """Return a request for the instance qwen2, with a model folder on the machine and the `sections` of its file."""
    import msgspec

    from ascendd.config.load import convert

    model = machine.root / "models/qwen2"
    header = json.dumps({"w": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}).encode()
    machine.write("models/qwen2/config.json", json.dumps(QWEN2_7B))
    machine.write("models/qwen2/tokenizer.json", "{}")
    (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    config = convert({"model": {"path": str(model)}, **sections})
    return {"instance": "qwen2", "config_json": msgspec.json.encode(config).decode()}


def asked(case: Case, **request: object) -> Case:
    """Return `case` with the doctor asked for the instance qwen2."""
    return dataclasses.replace(case, request=lambda machine: {**instance(machine), **request})


def with_file(case: Case, **sections: dict[str, Any]) -> Case:
    """Return `case` with an instance whose file has these sections."""
    return dataclasses.replace(case, request=lambda machine: instance(machine, **sections))


def disk(machine: FakeMachine, path: str, total: int, free: int) -> None:
    """Have a file system of this size at `path`."""
    machine.disks[path] = (total, free)
    machine.mark()


def limit(name: str, old: str, new: str) -> Callable[[FakeMachine], None]:
    """Return what changes one row of the limits."""
    return lambda machine: machine.edit("proc/self/limits", f"{name:<26}{old}", f"{name:<26}{new}")


def fact(machine: FakeMachine, **facts: object) -> None:
    """Have the machine say more of itself."""
    machine.facts.update(facts)
    machine.mark()


def orphan(machine: FakeMachine) -> None:
    """Leave an engine behind whose supervisor is gone."""
    machine.process(4200, "python3")
    machine.write("proc/4200/cmdline", "python3\0-m\0ascendd\0_engine\0--control-fd\0005\0")


def with_shell(machine: FakeMachine, **variables: str) -> None:
    """Have variables in the shell that the unit, as it is now, lacks."""
    machine.unit("qwen2")
    machine.setenv(**variables)


HOST_CASES: dict[str, Case] = {
    # Python, torch, torch_npu and CANN.
    "a torch that this CANN has no row for": fail(
        "python-stack", "ASD-P01", "torch 2.7.1 is not listed for CANN 8.2.RC1, for which the vendor lists torch 2.6.0 with torch_npu 2.6.0",
        "Install torch 2.6.0 with torch_npu 2.6.0", lambda m: m.install_torch("2.7.1", "2.7.1")),
    "a torch_npu of another torch": fail(
        "python-stack", "ASD-G78", "torch_npu 2.5.1.post1 is built for torch 2.5.1, not for 2.6.0", "Install torch 2.5.1",
        lambda m: m.install_torch("2.6.0+cpu", "2.5.1.post1")),
    "a torch_npu of another CANN": warn(
        "python-stack", "ASD-G78", "torch_npu 2.6.0.post3 is not the one listed for CANN 8.2.RC1, it is made for 8.3.RC1",
        "Install torch_npu 2.6.0", lambda m: m.install_torch("2.6.0", "2.6.0.post3")),
    "no torch_npu": fail(
        "python-stack", "ASD-G78", "torch_npu not installed in /opt/ascendd/current/lib/python3.11/site-packages",
        "Install torch 2.6.0 with torch_npu 2.6.0", lambda m: m.remove(f"{SITE}/torch_npu-2.6.0.dist-info", f"{SITE}/torch_npu")),
    "two releases of torch": fail(
        "python-stack", "ASD-G78", "torch is installed more than once: 2.6.0 and 2.7.1", "pip uninstall torch", lambda m: m.package("torch", "2.7.1")),
    "a Python that torch_npu is not made for": fail(
        "python-stack", "ASD-P01", "Python 3.12 is none that torch_npu is made for with torch 2.6.0 (3.9, 3.10, 3.11)", "with Python 3.11",
        lambda m: (m.root / "opt/ascendd/current/lib/python3.11").rename(m.root / "opt/ascendd/current/lib/python3.12")),
    "a CANN that nobody knows": warn(
        "python-stack", "ASD-P01", "nothing is published on CANN 9.9.9 with torch 2.6.0", "permit it in /etc/ascendd/policy.json",
        lambda m: (m.install_cann("9.9.9"), nnal(m, "9.9.9"), permit(m, cann="9.9.9", driver="24.1.rc3"))),
    "a package before the service's own": fail(
        "python-stack", "ASD-G78", "torch is installed more than once: 2.6.0 and 2.9.0", "until it says that there is none",
        lambda m: m.package("torch", "2.9.0", "usr/local/Ascend/ascend-toolkit/8.2.RC1/python/site-packages")),
    "a package with CANN's name": warn(
        "placeholder-packages", "ASD-G24", "ascend-cann-nnrt 8.0.0 is no CANN", "Uninstall it", lambda m: m.package("ascend-cann-nnrt", "8.0.0")),
    "a torch_npu without a library": fail(
        "placeholder-packages", "ASD-G78", "torch_npu is a placeholder", "Uninstall it", lambda m: m.remove(f"{SITE}/torch_npu/lib/libtorch_npu.so")),
    # The account of the service.
    "a service outside of the driver's group": fail(
        "service-user", "ASD-H03", "ascendd is not in the driver's group HwHiAiUser and cannot open /dev/davinci0 and 10 more",
        "Put ascendd into the group HwHiAiUser", lambda m: m.edit("etc/group", "HwHiAiUser:x:1000:ascendd", "HwHiAiUser:x:1000:")),
    "nodes that are open to all, and a service outside of the group": warn(
        "service-user", "ASD-H03", "though it may open the nodes", "as the vendor's tools expect",
        lambda m: (m.edit("etc/group", "HwHiAiUser:x:1000:ascendd", "HwHiAiUser:x:1000:"),
                   fact(m, owners={f"/dev/davinci{chip}": (0, 0, "0666") for chip in range(8)}))),
    "a node that only the service is refused": fail(
        "service-user", "ASD-H03", "ascendd cannot open /dev/davinci3: Operation not permitted", "DeviceAllow= of the unit",
        lambda m: fact(m, denied_to={"ascendd": {"/dev/davinci3": "Operation not permitted"}})),
    "a unit whose user does not exist": asked(fail(
        "service-user", "ASD-H03", "the unit runs as llm, and this host has no such user", "systemd-sysusers", lambda m: m.unit("qwen2", User="llm"))),
    # The shell against the unit.
    "a variable that only the shell has": asked(warn(
        "shell-environment", "ASD-G32", "set in this shell and not in the unit: HCCL_CONNECT_TIMEOUT", "/etc/ascendd/cann.env",
        lambda m: with_shell(m, HCCL_CONNECT_TIMEOUT="600")), as_service=True),
    "a library path that only the shell has": asked(warn(
        "shell-environment", "ASD-G32", "LD_LIBRARY_PATH lacks in the unit what this shell has: /opt/extra/lib", "what set_env.sh exports",
        lambda m: with_shell(m, LD_LIBRARY_PATH="/opt/extra/lib:" + m.environ["LD_LIBRARY_PATH"])), as_service=True),
    "a value that differs": asked(warn(
        "shell-environment", "ASD-G32", "TASK_QUEUE_ENABLE is 1 in the unit and 2 in this shell", "in line",
        lambda m: (m.setenv(TASK_QUEUE_ENABLE="1"), with_shell(m, TASK_QUEUE_ENABLE="2"))), as_service=True),
    # Limits, memory, CPUs.
    "few open files": warn(
        "ulimits", "ASD-G50", "this shell may open 1024 files", "LimitNOFILE=65536", limit("Max open files", "1048576              1048576", "1024                 1024")),
    "hardly any open file": fail(
        "ulimits", "ASD-G50", "this shell may open 256 files", "LimitNOFILE=65536", limit("Max open files", "1048576              1048576", "256                  256")),
    "a unit with few open files": asked(warn(
        "ulimits", "ASD-G50", "ascendd@qwen2 may open 1024 files", "systemctl edit", lambda m: m.unit("qwen2", LimitNOFILE="1024"))),
    "no memory to lock": warn(
        "ulimits", "ASD-H01", "this shell may lock 64 KiB", "LimitMEMLOCK=infinity", limit("Max locked memory", "unlimited            unlimited", "65536                65536")),
    "few threads": asked(warn(
        "ulimits", "ASD-G52", "may have 512 processes and threads", "TasksMax=infinity", lambda m: m.unit("qwen2", TasksMax="512"))),
    "a container's shared memory": warn(
        "shared-memory", "ASD-G51", "/dev/shm has 256 MiB", "mount it larger", lambda m: disk(m, "/dev/shm", 256 * MIB, 250 * MIB)),
    "shared memory that is full": fail(
        "shared-memory", "ASD-G51", "/dev/shm is full: 12 MiB free", "what earlier runs left", lambda m: disk(m, "/dev/shm", 64 * GIB, 12 * MIB)),
    "huge pages that nobody uses": warn(
        "huge-pages", "ASD-H01", "102400 reserved huge pages are unused and hold back 200.0 GiB", "vm.nr_hugepages=0",
        lambda m: (m.edit("proc/meminfo", "HugePages_Total: 0", "HugePages_Total: 102400"),
                   m.edit("proc/meminfo", "HugePages_Free: 0", "HugePages_Free: 102400"))),
    "a kernel that stops to make huge pages": warn(
        "huge-pages", "ASD-H01", "the kernel stops any process", "in the background",
        lambda m: (m.write("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n"),
                   m.write("sys/kernel/mm/transparent_hugepage/defrag", "[always] defer defer+madvise madvise never\n"))),
    "eager swapping": warn(
        "swappiness", "ASD-H01", "vm.swappiness is 60 with 8.0 GiB of swap", "vm.swappiness=10",
        lambda m: (m.write("proc/sys/vm/swappiness", "60\n"), m.edit("proc/meminfo", "SwapTotal: 0 kB", f"SwapTotal: {8 * MIB} kB"),
                   m.edit("proc/meminfo", "SwapFree: 0 kB", f"SwapFree: {8 * MIB} kB"))),
    # Answers that are none: not known is not sound.
    "counters of one chip that are none": error(
        "npu-ecc", "ASD-D05", "NPU 3: npu-smi printed no counters of double-bit errors", "by hand",
        lambda m: m.answer("npu-smi", "info -t ecc -i 3", "Chip ID : 0\nHBM Double Bit Error Count : NA\n")),
    "a board that tells no firmware": warn(
        "firmware-version", "ASD-P01", "which firmware runs on NPU 3 is not known", "may need a reset",
        lambda m: m.answer("npu-smi", "info -t board -i 3", "NPU ID : 3\n")),
    "a kernel log that is none": error(
        "kernel-log", "ASD-P05", "the kernel log cannot be read: journalctl said: Hint: you see", "as root",
        lambda m: (m.answer("journalctl", JOURNAL, "Hint: you see your own messages only\n"), m.answer("dmesg", "", "no\n"))),
    "limits that cannot be read": error(
        "ulimits", "ASD-P04", "/proc/self/limits has no line of open files", "mounted", lambda m: m.write("proc/self/limits", "junk\n")),
    "connections that cannot be read": error(
        "hccl-ports", "ASD-P04", "/proc/net/tcp holds no table of connections", "mounted", lambda m: m.write("proc/net/tcp", "")),
    "a slow governor": warn(
        "cpu-governor", "ASD-H01", "CPUs 24,48 have the governor powersave", "performance",
        lambda m: [m.write(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor", "powersave\n") for cpu in (24, 48)]),
    "a full disk of logs": fail(
        "log-disk", "ASD-G49", "/var/log is full: 40 MiB free for the daemon's logs", "log.max_bytes", lambda m: disk(m, "/var/log", GIB, 40 * MIB)),
    "a disk that rotation fills": warn(
        "log-disk", "ASD-G49", "/var/log has 300 MiB free; the daemon's logs may take 572", "log.backups", lambda m: disk(m, "/var/log", GIB, 300 * MIB)),
    "no room for the runtime's logs": fail(
        "log-disk", "ASD-G49", "/root/ascend/log is full: 3 MiB free for the runtime's logs (plog)", "ASCEND_PROCESS_LOG_PATH",
        lambda m: disk(m, "/root", GIB, 3 * MIB)),
    "a clock that was never set": fail(
        "clock", "ASD-H01", "the clock says 1970-01-02 10:17 UTC, which is over", "Set the clock", lambda m: fact(m, now_unix_s=123456)),
    "a clock that nobody keeps": warn(
        "clock", "ASD-H01", "not synchronised: no time service is switched on", "Switch on chronyd",
        lambda m: m.answer("timedatectl", TIMEDATECTL, "Timezone=UTC\nNTP=no\nNTPSynchronized=no\n")),
    "a time server that does not answer": warn(
        "clock", "ASD-H01", "its time service has no answer yet", "reach its time server",
        lambda m: m.answer("timedatectl", TIMEDATECTL, "Timezone=UTC\nNTP=yes\nNTPSynchronized=no\n")),
    # What the instance wants.
    "65,536 blocks": with_file(fail(
        "plan-fits", "ASD-M05", "65536", "", lambda m: None), engine={"max_num_blocks": 65536}),
    "a port that is taken": asked(fail(
        "port-free", "ASD-H02", "listen.port 8000 has a listener already", "End that process", lambda m: listen(m, 8000))),
    "an engine without a supervisor": warn(
        "leftover-processes", "ASD-G74", "python3 (pid 4200) of an earlier run lives on without its supervisor", "End it", orphan),
}  # fmt: skip
