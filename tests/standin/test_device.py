"""The real torch_npu on one machine of stand-in devices, driven in one process by pieces of code."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from standin.machine import Machine
    from standin.shell import Shell

MIB = 1 << 20


def test_is_seen_by_torch_npu(shell: Shell) -> None:
    """torch_npu counts the devices, names the SoC and reads the version of CANN from the stand-in."""
    seen = shell.run("", "[torch.npu.device_count(), torch.npu.get_device_name(0), torch_npu.__version__]")

    assert seen == [2, "Ascend910B3", "2.13.0"]


def test_computes_on_the_host(shell: Shell) -> None:
    """A linear layer, attention, an index written in place and an argmax on the device equal those on the CPU."""
    code = """
torch.manual_seed(0)
F = torch.nn.functional
x, w, q = torch.randn(3, 16), torch.randn(8, 16), torch.randn(1, 2, 5, 8)
with torch.inference_mode():
    on_npu = [F.linear(x.npu(), w.npu()), F.scaled_dot_product_attention(q.npu(), q.npu(), q.npu(), is_causal=True)]
    table = torch.zeros(4, 16).npu()
    table[torch.tensor([2]).npu()] = x[:1].npu()
    on_npu += [table[2], on_npu[0].argmax(-1)]
    on_cpu = [F.linear(x, w), F.scaled_dot_product_attention(q, q, q, is_causal=True), x[0], F.linear(x, w).argmax(-1)]
"""
    same = shell.run(code, "[a.device.type == 'npu' and torch.equal(a.cpu(), b) for a, b in zip(on_npu, on_cpu)]")

    assert same == [True] * 4


def test_runs_out_of_memory_for_real(shell: Shell) -> None:
    """The caching allocator of torch_npu refuses more than the device has, names the sizes, and goes on."""
    code = """
try:
    torch.empty(300 << 20, dtype=torch.uint8, device="npu")
    text = ""
except torch.OutOfMemoryError as error:
    text = str(error)
rest = torch.ones(8, device="npu").sum().item()
"""
    text, rest = shell.run(code, "[text, rest]")  # type: ignore[misc]

    assert "NPU out of memory. Tried to allocate 302.00 MiB" in text  # in whole blocks of 2 MiB
    assert "256.00 MiB total capacity" in text
    assert rest == 8.0


def _holder(machine: Machine, device: int, num_bytes: int, **more: str) -> subprocess.Popen[str]:
    """Return a process that holds memory of a device, without torch, and has printed how many devices it sees."""
    code = f"""
import ctypes
acl = ctypes.CDLL("libascendcl.so")
count, address = ctypes.c_uint32(), ctypes.c_void_p()
acl.aclInit(None), acl.aclrtGetDeviceCount(ctypes.byref(count))
assert acl.aclrtSetDevice({device}) == 0 and acl.aclrtMalloc(ctypes.byref(address), {num_bytes}, 0) == 0
print(count.value, flush=True)
input()
"""
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=machine.environment(**more),
    )  # fmt: skip


def test_devices_are_shared_by_processes(shell: Shell, machine: Machine) -> None:
    """What another process holds is missing here while it lives, and comes back when it is killed."""
    free = "torch.npu.mem_get_info(1)[0]"
    with _holder(machine, 1, 64 * MIB) as process:
        assert process.stdout is not None
        process.stdout.readline()
        during = shell.run("torch.npu.set_device(1)", free)
        used = machine.used_bytes(1)
        process.kill()
    after = shell.run("", free)
    shell.run("torch.npu.set_device(0)")

    assert (during, used, after) == (192 * MIB, 64 * MIB, 256 * MIB)


def test_visible_devices_are_renumbered(machine: Machine) -> None:
    """ASCEND_RT_VISIBLE_DEVICES=1 leaves one device, whose memory is charged to the machine's second."""
    with _holder(machine, 0, 32 * MIB, ASCEND_RT_VISIBLE_DEVICES="1") as process:
        assert process.stdout is not None
        count = process.stdout.readline()
        used = [machine.used_bytes(device) for device in (0, 1)]
        process.kill()

    assert count == "1\n"
    assert used[1] == 32 * MIB


def test_fault_on_the_nth_call(shell: Shell, machine: Machine) -> None:
    """The second synchronisation of the stream fails with the code set for it; those before and after do not."""
    machine.fault("aclrtSynchronizeStreamWithTimeout", 507035, call=2)
    code = """
texts = []
for _ in range(3):
    try:
        torch.npu.current_stream().synchronize()
        texts.append("")
    except RuntimeError as error:
        texts.append(str(error))
"""
    before, text, after = shell.run(code, "texts")  # type: ignore[misc]

    assert (before, after) == ("", "")
    assert "507035" in text


def test_fault_of_an_operator(shell: Shell, machine: Machine) -> None:
    """An operator named in a fault fails at its next call, and only there."""
    machine.fault("aten::mm", 507015)
    code = """
x = torch.ones(2, 2).npu()
try:
    text = str(torch.mm(x, x).cpu())
except RuntimeError as error:
    text = str(error)
"""
    text, again = shell.run(code, "[text, torch.mm(x, x).sum().item()]")  # type: ignore[misc]

    assert "call aten::mm failed, error code is 507015" in text
    assert again == 8.0


def test_hang_ends_only_by_a_kill(machine: Machine) -> None:
    """A call that hangs keeps its process alive and silent until it is killed."""
    machine.hang("aclrtSynchronizeDevice", device=1)
    code = "import ctypes; acl = ctypes.CDLL('libascendcl.so'); acl.aclrtSetDevice(1); print('before', flush=True); "
    code += "acl.aclrtSynchronizeDevice()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=machine.environment()) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.kill()
        assert process.wait() == -9


def test_dead_device_fails_every_call(shell: Shell, machine: Machine) -> None:
    """After its death a device fails copies, operators and synchronisation with one code; revived, it serves again."""
    machine.kill_device(0, code=507010)
    code = """
texts = []
for act in (lambda: torch.ones(2).npu(), lambda: torch.mm(x, x), lambda: torch.npu.synchronize()):
    try:
        act()
        texts.append("no error")
    except RuntimeError as error:
        texts.append(str(error))
"""
    texts = shell.run(code, "texts")
    machine.revive_device(0)
    after = shell.run("", "torch.mm(x, x).sum().item()")

    assert isinstance(texts, list)
    assert ["507010" in text for text in texts] == [True] * 3
    assert after == 8.0


def test_perturbed_operator_is_wrong_by_one_percent(shell: Shell, machine: Machine) -> None:
    """The chosen result of the named operator is 1 % too large while it is named; others stay right."""
    code = "y, root = torch.ops.npu.npu_rms_norm(torch.ones(1, 8, device='npu'), torch.ones(8, device='npu'))"
    machine.perturb("npu::npu_rms_norm")
    wrong = shell.run(code, "[y[0, 0].item(), root.item(), torch.ones(1, device='npu').add(1).item()]")
    machine.perturb("npu::npu_rms_norm", output=1)
    second = shell.run(code, "[y[0, 0].item(), root.item()]")
    machine.perturb(None)
    right = shell.run(code, "y[0, 0].item()")

    assert wrong == [pytest.approx(1.01, abs=1e-5), pytest.approx(1.0, abs=1e-5), 2.0]
    assert second == [pytest.approx(1.0, abs=1e-5), pytest.approx(1.01, abs=1e-5)]
    assert right == pytest.approx(1.0, abs=1e-5)


def test_streams_wait_for_events(shell: Shell) -> None:
    """Work that another stream's event holds up is not done before that event, and then in order."""
    code = """
import ctypes, threading
acl = ctypes.CDLL("libascendcl.so")
class Handle(ctypes.c_void_p): pass
first, second, event = Handle(), Handle(), Handle()
for stream in (first, second):
    assert acl.aclrtCreateStream(ctypes.byref(stream)) == 0
assert acl.aclrtCreateEventWithFlag(ctypes.byref(event), 1) == 0
source, target = ctypes.create_string_buffer(b"new"), ctypes.create_string_buffer(b"old")
gate = threading.Event()
Task = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
task = Task(lambda _: 0 if gate.wait(30) else 1)
assert acl.standin_submit(first, task, None, 0, 1) == 0   # something that takes its time
assert acl.aclrtRecordEvent(event, first) == 0
assert acl.aclrtStreamWaitEvent(second, event) == 0
assert acl.aclrtMemcpyAsync(target, 4, source, 4, 0, second) == 0
late = acl.aclrtSynchronizeStreamWithTimeout(second, 100)
before = target.value.decode()
gate.set()
done = acl.aclrtSynchronizeStream(second)
"""
    order = shell.run(code, "[late, before, done, target.value.decode()]")

    assert order == [507046, "old", 0, "new"]  # 507046: stream synchronisation timed out


def test_every_meaning_is_an_operator_of_the_wheel(shell: Shell) -> None:
    """A name that torch_npu does not have would never be called; casts come as its own Python sends them."""
    from standin_npu.meanings import MEANINGS

    code = """
names = {f"{s.name}.{s.overload_name}".rstrip(".") for s in torch._C._jit_get_all_schemas() if s.name.startswith("npu::")}
x = torch.tensor([[0.0, 0.5], [-1.0, 1.75]]).npu()
whole = torch_npu.npu_dtype_cast(x, torch.int).tolist()
plain = [torch_npu.npu_format_cast(x, x).tolist(), torch_npu.npu_format_cast_(x, 29).tolist()]
"""
    names, whole, plain = shell.run(code, "[sorted(names), whole, plain]")  # type: ignore[misc]

    assert {f"npu::{name}" for name in MEANINGS} <= set(names)  # type: ignore[arg-type]
    assert whole == [[0, 0], [-1, 1]]
    assert plain == [[[0.0, 0.5], [-1.0, 1.75]]] * 2


def test_operator_without_a_meaning_says_so(shell: Shell) -> None:
    """An npu operator that the stand-in does not know fails instead of returning what was in memory."""
    code = """
try:
    torch.ops.npu.npu_fast_gelu(torch.ones(4, device="npu")).cpu()
    text = "no error"
except RuntimeError as error:
    text = str(error)
"""
    assert shell.run(code, "text") != "no error"


def test_process_without_a_machine_is_told(machine: Machine) -> None:
    """The library ends a process that names no machine, and says how to make one."""
    environment = machine.environment() | {"STANDIN_NPU_MACHINE": os.devnull}
    result = subprocess.run(
        [sys.executable, "-c", "import ctypes; ctypes.CDLL('libascendcl.so').aclInit(None)"],
        env=environment, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip

    assert result.returncode == 96
    assert "STANDIN_NPU_MACHINE=/dev/null" in result.stderr
