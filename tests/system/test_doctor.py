"""The whole doctor on a recorded Atlas with two 910B chips: all nine checks pass, and each fault is named."""

import json
import os
import struct
import subprocess
import time
from pathlib import Path

import pytest

from ascendd.preflight.check import CheckResult, Verdict
from ascendd.preflight.context import CheckContext, CheckRequest
from ascendd.preflight.discover import find_checks, select
from ascendd.preflight.gate import run_gate
from ascendd.preflight.report import DoctorExit, exit_code
from ascendd.preflight.runner import run_checks

pytestmark = pytest.mark.system

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
RECORDINGS = FIXTURES / "npu-smi"
GIB = 2**30

# Real files of driver 24.1.rc3, firmware 7.5.0.1.129 and CANN 8.2.RC1 as quoted in public repositories.
DRIVER_INFO = """Version=24.1.rc3
ascendhal_version=7.35.23
Innerversion=V100R001C19SPC001B124
compatible_version=[V100R001C13],[V100R001C15],[V100R001C17],[V100R001C18],[V100R001C19]
compatible_version_fw=[7.0.0,7.5.99]
package_version=24.1.rc3
"""
FIRMWARE_INFO = """Version=7.5.0.2.220
firmware_version=1.0
package_version=24.1.rc3
compatible_version_drv=[23.0.0,23.0.0.],[24.0,24.0.],[24.1,24.1.]
"""
CANN_INFO = """package_name=Ascend-cann-toolkit
version={version}
innerversion=V100R001C22SPC001B231
compatible_version=[V100R001C15],[V100R001C18],[V100R001C19],[V100R001C20],[V100R001C21]
arch=aarch64
os=linux
path=/usr/local/Ascend/ascend-toolkit/8.2.RC1/aarch64-linux
"""
NPU_SMI = """#!/bin/sh
case "$*" in
  "info") file=info ;;
  "info -t board -i "*) file=board ;;
  "info -t ecc -i "*) file=ecc ;;
  "info -t health -i "*) file=health ;;
  *) exit 1 ;;
esac
[ -e {answers}/$file.hang ] && exec sleep 600
cat {answers}/$file.txt
exit $(cat {answers}/$file.status 2>/dev/null || echo 0)
"""


class Machine:
    """A host below a folder: sysfs, nodes, npu-smi, driver, firmware, CANN and a model packed for two ranks."""

    def __init__(self, root: Path, acl_library: Path) -> None:
        self.root, self.answers = root, root / "answers"
        self.toolkit = root / "usr/local/Ascend/ascend-toolkit/8.2.RC1"
        self.model = root / "models/qwen2-tiny"
        self.environ = {
            "PATH": "/usr/bin:/bin",
            "HOME": "/root",
            "ASCEND_HOME_PATH": "/usr/local/Ascend/ascend-toolkit/latest",
            "ASCEND_TOOLKIT_HOME": "/usr/local/Ascend/ascend-toolkit/latest",
            "ASCEND_OPP_PATH": "/usr/local/Ascend/ascend-toolkit/latest/opp",
            "ASCEND_AICPU_PATH": "/usr/local/Ascend/ascend-toolkit/latest",
            "PYTHONPATH": "/usr/local/Ascend/ascend-toolkit/latest/python/site-packages",
            "LD_LIBRARY_PATH": "/usr/local/Ascend/driver/lib64/driver:/usr/local/Ascend/ascend-toolkit/latest/lib64",
        }
        for number, (vendor, device) in enumerate([("0x19e5", "0xd802"), ("0x19e5", "0xd802"), ("0x19e5", "0xa255")]):
            self.write(f"sys/bus/pci/devices/0000:c{number}:00.0/vendor", vendor + "\n")
            self.write(f"sys/bus/pci/devices/0000:c{number}:00.0/device", device + "\n")
        for node in ("davinci0", "davinci1", "davinci_manager", "devmm_svm", "hisi_hdc"):
            self.write(f"dev/{node}", "")
        self.answer("info", "info-24.1.rc3-910B3-2npu-idle.txt")
        self.answer("board", "t-board-910B-24.1.0.txt")
        self.answer("ecc", "t-ecc-910A-clean.txt")
        self.answer("health", "t-health-910B3.txt")
        tool = self.write("usr/local/bin/npu-smi", NPU_SMI.format(answers=self.answers))
        tool.chmod(0o755)
        self.write("etc/ascend_install.info", "UserGroup=HwHiAiUser\nDriver_Install_Path_Param=/usr/local/Ascend\n")
        self.write("usr/local/Ascend/driver/version.info", DRIVER_INFO)
        self.write("usr/local/Ascend/driver/lib64/driver/libascend_hal.so", "")
        self.write("usr/local/Ascend/firmware/version.info", FIRMWARE_INFO)
        self.log_firmware("910b")
        self.install_cann("8.2.RC1")
        (self.toolkit.parent / "latest").symlink_to("8.2.RC1")
        for folder in ("opp", "python/site-packages", "lib64"):
            (self.toolkit / folder).mkdir(parents=True)
        (self.toolkit / "lib64/libascendcl.so").symlink_to(acl_library)
        (self.toolkit / "lib64/libhccl.so").touch()
        self.write("proc/meminfo", f"MemTotal: {64 * 2**20} kB\nMemAvailable: {60 * 2**20} kB\n")
        self.write_model()

    def write(self, path: str, text: str) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def answer(self, question: str, recording: str, status: int = 0) -> None:
        self.write(f"answers/{question}.txt", (RECORDINGS / recording).read_text())
        self.write(f"answers/{question}.status", str(status))

    def install_cann(self, version: str) -> None:
        self.write(
            "usr/local/Ascend/ascend-toolkit/8.2.RC1/aarch64-linux/ascend_toolkit_install.info",
            CANN_INFO.format(version=version),
        )

    def log_firmware(self, chip: str) -> None:
        line = f"[Firmware] [2024-11-02 10:31:56] [INFO] ./Ascend-hdk-{chip}-npu-firmware_7.5.0.2.220.run --full\n"
        self.write("var/log/ascend_seclog/operation.log", line)

    def write_model(self) -> None:
        """Write an artefact of two ranks, whose weights are four zeros each."""
        from ascendd.artefact.manifest import FileEntry, Manifest, SourceRecord, encode_manifest, hash_file

        self.model.mkdir(parents=True)
        config = {
            "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 2, "hidden_size": 64,
            "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
            "max_position_embeddings": 2048, "dtype": "bfloat16",
        }  # fmt: skip
        (self.model / "config.json").write_text(json.dumps(config))
        header = json.dumps({"w": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}).encode()
        for rank in range(2):
            data = struct.pack("<Q", len(header)) + header + bytes(8)
            (self.model / f"rank-{rank}-of-2.safetensors").write_bytes(data)
        files = {}
        for path in sorted(self.model.iterdir()):
            digest, size = hash_file(path)
            files[path.name] = FileEntry(bytes=size, sha256=digest)
        manifest = Manifest(
            format_version=1, architecture="Qwen2ForCausalLM", dtype="bfloat16", tensor_parallel_size=2, fused_operators=(),
            num_parameters=1, total_bytes=16, files=files, cast_report={}, clamped=False, created_unix_s=0, ascendd_version="0",
            source=SourceRecord(path="/models/src", format="safetensors", dtype="bfloat16", quantisation={}, bytes=16),
        )  # fmt: skip
        (self.model / "ascendd-manifest.json").write_bytes(encode_manifest(manifest))

    def config(self, tp_size: int = 2):
        from ascendd.config.load import convert

        return convert({"model": {"path": str(self.model)}, "parallel": {"tensor_parallel_size": tp_size}})

    def diagnose(self, *only: str, tp_size: int = 2, **request: object) -> dict[str, CheckResult]:
        import msgspec

        config_json = msgspec.json.encode(self.config(tp_size)).decode()
        made = CheckRequest(config_json=config_json, root=str(self.root), environ=self.environ, **request)
        results = run_checks(select(find_checks(), only, deep=made.deep), made)
        return {result.check_id: result for result in results}


def left_running(variable: str) -> list[str]:
    """Return the processes that still have `variable` in their environment five seconds on; the kernel reaps in its time."""
    deadline = time.monotonic() + 5
    while (found := processes_with(variable)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def processes_with(variable: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if variable.encode() in path.read_bytes().split(b"\0"):
                found.append((path.parent / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def acl_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("acl") / "libascendcl.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, FIXTURES / "fake_acl.c"], check=True)
    return library


@pytest.fixture
def machine(tmp_path: Path, acl_library: Path) -> Machine:
    return Machine(tmp_path / "root", acl_library)


def test_all_nine_checks_pass_on_a_sound_910b_machine(machine: Machine) -> None:
    """A machine where everything is in order passes all nine checks, checksums included."""
    results = machine.diagnose(deep=True)

    assert {check_id: (r.verdict, r.summary) for check_id, r in results.items() if r.verdict is not Verdict.PASS} == {}
    assert len(results) == 9
    assert exit_code(list(results.values())) is DoctorExit.PASS
    assert results["npu-presence"].evidence["counts"] == {"pci": 2, "nodes": 2, "npu_smi": 2, "acl": 2}
    assert "Ascend910B3" in results["acl-runtime"].summary
    assert "checksums of 3 files equal" in results["model-artefact"].summary


FAULTS = {
    "a chip without its node": (
        lambda m: (m.root / "dev/davinci1").unlink(),
        "npu-presence", Verdict.FAIL, "the counts disagree: PCI 2, /dev 1, npu-smi 2, ACL 2",
    ),
    "all nodes gone": (
        lambda m: [path.unlink() for path in (m.root / "dev").iterdir()],
        "npu-presence", Verdict.FAIL, "the bus has NPUs, /dev has none",
    ),
    "no manager node": (
        lambda m: (m.root / "dev/davinci_manager").unlink(), "npu-presence", Verdict.FAIL, "/dev/davinci_manager not there",
    ),
    "no svm node": (
        lambda m: (m.root / "dev/devmm_svm").unlink(), "npu-presence", Verdict.WARN, "/dev/devmm_svm not there",
    ),
    "a node that cannot be opened": (
        lambda m: ((m.root / "dev/davinci1").unlink(), (m.root / "dev/davinci1").mkdir()),
        "npu-presence", Verdict.FAIL, "/dev/davinci1 cannot be opened: Is a directory",
    ),
    "driver interface dead": (
        lambda m: m.answer("info", "abn-dcmi-8005-old-loglevel-line.txt", 187),
        "npu-presence", Verdict.FAIL, "INNER_ERR -8005",
    ),
    "device held by another container": (
        lambda m: m.answer("info", "abn-dcmi-8020-busy.txt", 172), "npu-presence", Verdict.FAIL, "RESOURCE_OCCUPIED -8020",
    ),
    "npu-smi without its libraries": (
        lambda m: m.write("usr/local/bin/npu-smi", "#!/bin/sh\ncat %s >&2; exit 127\n" % (RECORDINGS / "abn-ld-libc_sec-rc127.txt")),
        "npu-presence", Verdict.FAIL, "npu-smi cannot start: libc_sec.so",
    ),
    "a folder in place of npu-smi": (
        lambda m: ((m.root / "usr/local/bin/npu-smi").unlink(), (m.root / "usr/local/sbin/npu-smi").mkdir(parents=True)),
        "npu-presence", Verdict.FAIL, "/usr/local/sbin/npu-smi is a folder, not the tool",
    ),
    "ACL sees fewer devices": (
        lambda m: m.environ.update(FAKE_ACL_COUNT="1"), "npu-presence", Verdict.FAIL, "npu-smi 2, ACL 1",
    ),
    "a chip in alarm": (
        lambda m: (m.answer("info", "info-23.0.0-310B4-alarm-busid-NA.txt"), m.answer("health", "abn-t-health-c0-alarm-80E01801.txt")),
        "npu-health", Verdict.FAIL, "is Alarm (80E01801",
    ),
    "HBM double-bit errors": (
        lambda m: m.answer("ecc", "abn-t-ecc-hbm-double-bit.txt"), "npu-health", Verdict.FAIL, "HBM Double Bit Error Count 2",
    ),
    "a reboot pending after a driver upgrade": (
        lambda m: m.write("usr/local/Ascend/driver/version.info", DRIVER_INFO.replace("24.1.rc3", "24.1.0")),
        "driver-version", Verdict.FAIL, "24.1.0 is installed but 24.1.rc3 runs",
    ),
    "a driver that only the release notes list": (
        lambda m: m.write("usr/local/Ascend/driver/version.info", DRIVER_INFO.replace("C19", "C13")),
        "driver-version", Verdict.PASS, "listed by the vendor for CANN 8.2.RC1",
    ),
    "a pair nobody lists": (
        lambda m: (m.write("usr/local/Ascend/driver/version.info", DRIVER_INFO.replace("C19", "C13")), m.install_cann("8.1.RC1")),
        "driver-version", Verdict.FAIL, "neither driver 24.1.rc3 nor CANN 8.1.RC1 lists the other",
    ),
    "no driver on disk": (
        lambda m: (m.root / "usr/local/Ascend/driver/version.info").unlink(),
        "driver-version", Verdict.WARN, "version.info is not there; running: 24.1.rc3",
    ),
    "firmware of the first generation": (
        lambda m: m.log_firmware("910"), "firmware-version", Verdict.FAIL, "is for 910, the chips are A2 (910b)",
    ),
    "firmware that the driver does not take": (
        lambda m: (
            m.write("usr/local/Ascend/driver/version.info", DRIVER_INFO.replace("7.5.99", "7.2.99")),
            m.write("usr/local/Ascend/firmware/version.info", FIRMWARE_INFO.replace(",[24.1,24.1.]", "")),
        ),
        "firmware-version", Verdict.FAIL, "firmware 7.5.0.2.220 is outside [7.0.0,7.2.99], which driver 24.1.rc3 accepts",
    ),
    "firmware that knows its older driver": (
        lambda m: m.write("usr/local/Ascend/driver/version.info", DRIVER_INFO.replace("7.5.99", "7.2.99")),
        "firmware-version", Verdict.PASS, "7.5.0.2.220 runs on every NPU",
    ),
    "firmware too old": (
        lambda m: m.write("usr/local/Ascend/firmware/version.info", FIRMWARE_INFO.replace("7.5.0.2.220", "6.4.12.1.241")),
        "firmware-version", Verdict.FAIL, "firmware 6.4.12.1.241 is older than 7.0.0",
    ),
    "firmware that npu-smi calls incompatible": (
        lambda m: m.answer("board", "abn-t-board-compat-nok.txt"), "firmware-version", Verdict.FAIL, "npu-smi: NOK",
    ),
    "no firmware package": (
        lambda m: (m.root / "usr/local/Ascend/firmware/version.info").unlink(),
        "firmware-version", Verdict.FAIL, "no firmware package is installed",
    ),
    "CANN that leaks": (
        lambda m: m.install_cann("6.3.RC3"), "cann-version", Verdict.FAIL, "leaks page-table memory",
    ),
    "CANN without its hotfix": (
        lambda m: m.install_cann("7.0.0"), "cann-version", Verdict.FAIL, "7.0.0 is refused without hotfix H100",
    ),
    "no CANN": (
        lambda m: (m.toolkit / "aarch64-linux/ascend_toolkit_install.info").unlink(),
        "cann-version", Verdict.FAIL, "no CANN toolkit found",
    ),
    "an environment that was not sourced": (
        lambda m: [m.environ.pop(key) for key in list(m.environ) if key not in ("PATH", "HOME")],
        "service-environment", Verdict.FAIL, "libascendcl.so is not on the library path; a copy is at",
    ),
    "a stub before the driver": (
        lambda m: (
            m.write("usr/local/Ascend/ascend-toolkit/latest/devlib/libascend_hal.so", ""),
            m.environ.update(LD_LIBRARY_PATH="/usr/local/Ascend/ascend-toolkit/latest/devlib:" + m.environ["LD_LIBRARY_PATH"]),
        ),
        "service-environment", Verdict.FAIL, "a stub for compiling (ACL error 100039)",
    ),
    "a path that leads nowhere": (
        lambda m: m.environ.update(ASCEND_AICPU_PATH="/opt/gone"),
        "service-environment", Verdict.WARN, "ASCEND_AICPU_PATH names /opt/gone",
    ),
    "ACL without memory": (
        lambda m: m.environ.update(FAKE_ACL_FAULT="aclrtMalloc=207001"),
        "acl-runtime", Verdict.FAIL, "aclrtMalloc failed: ACL_ERROR_RT_MEMORY_ALLOCATION 207001: EE9999",
    ),
    "memory that changes": (
        lambda m: m.environ.update(FAKE_ACL_FAULT="corrupt"),
        "acl-runtime", Verdict.FAIL, "first difference at byte 4097",
    ),
    "a runtime that crashes": (
        lambda m: m.environ.update(FAKE_ACL_FAULT="aclrtSetDevice=crash"),
        "acl-runtime", Verdict.FAIL, "aclrtSetDevice failed: the call ended its process with signal 11",
    ),
    "a weight file cut short": (
        lambda m: os.truncate(m.model / "rank-1-of-2.safetensors", 9),
        "model-artefact", Verdict.FAIL, "rank-1-of-2.safetensors has 9 bytes",
    ),
    "too little host memory": (
        lambda m: m.write("proc/meminfo", "MemTotal: 400 kB\nMemAvailable: 200 kB\n"),
        "host-memory", Verdict.FAIL, "needed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_named_by_its_check(machine: Machine, name: str) -> None:
    """A single fault changes the verdict of the check that looks for it, and the summary says what is wrong."""
    damage, check_id, verdict, words = FAULTS[name]
    damage(machine)

    result = machine.diagnose(check_id)[check_id]

    assert (result.verdict, words in result.summary) == (verdict, True), result
    assert verdict is Verdict.PASS or result.remedy is not None


def test_a_device_that_hangs_is_an_error_that_names_the_call_and_the_seconds(machine: Machine) -> None:
    """A call that never returns ends as ERROR within its limit, and nothing of it is left running."""
    machine.environ.update(FAKE_ACL_FAULT="aclrtSetDevice=hang", TOKEN=str(machine.root))
    started = time.monotonic()

    result = machine.diagnose("acl-runtime", patience=0.03)["acl-runtime"]

    assert result.verdict is Verdict.ERROR
    assert result.summary == "could not check: ACL did not come back from aclrtSetDevice within 1.8 s"
    assert time.monotonic() - started < 10
    assert left_running(f"TOKEN={machine.root}") == []


def test_a_check_that_hangs_itself_is_killed_with_the_tool_it_runs(machine: Machine) -> None:
    """The check's own limit ends it and the npu-smi below it, which has a process group of its own."""
    machine.write("answers/info.hang", "")
    machine.environ.update(TOKEN=str(machine.root))
    check = next(check for check in find_checks() if check.id == "driver-version")
    request = CheckRequest(device="npu", root=str(machine.root), environ=machine.environ)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "timeout_s", 1.5)
        result = run_checks([check], request)[0]

    assert result.verdict is Verdict.ERROR
    assert result.summary == "could not check: no answer within 1.5 s, so the check was killed"
    assert left_running(f"TOKEN={machine.root}") == []


def test_an_npu_smi_that_hangs_fails_presence_and_skips_what_hangs_on_it(machine: Machine) -> None:
    """Where npu-smi does not answer, presence says so, and the checks that need it are skipped with that reason."""
    machine.write("answers/info.hang", "")

    results = machine.diagnose("npu-presence", "npu-health", "acl-runtime", patience=0.05)

    assert results["npu-presence"].verdict is Verdict.FAIL
    assert "did not answer within 1 s" in results["npu-presence"].summary
    assert results["npu-health"].verdict is results["acl-runtime"].verdict is Verdict.SKIPPED
    assert "npu-presence failed" in results["npu-health"].summary


def test_damaged_weights_of_the_right_size_are_only_seen_with_deep(machine: Machine) -> None:
    """Sizes do not show a flipped byte; checksums do."""
    path = machine.model / "rank-0-of-2.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")

    quick, deep = (machine.diagnose("model-artefact", deep=deep)["model-artefact"] for deep in (False, True))

    assert quick.verdict is Verdict.PASS
    assert deep.verdict is Verdict.FAIL
    assert "SHA-256" in deep.summary


def test_an_artefact_packed_for_another_tensor_parallel_size_is_refused(machine: Machine) -> None:
    """The size that the model was packed for must be the configured one."""
    result = machine.diagnose("model-artefact", tp_size=1)["model-artefact"]

    assert result.verdict is Verdict.FAIL
    assert "packed for tensor_parallel_size 2, the configuration asks for 1" in result.summary


def test_a_named_instance_is_judged_by_the_environment_of_its_unit(machine: Machine, tmp_path: Path) -> None:
    """With --instance the unit's Environment and EnvironmentFile count, and the shell's variables do not."""
    lines = "\n".join(
        f"{key}={value}" for key, value in machine.environ.items() if key not in ("PATH", "LD_LIBRARY_PATH")
    )
    machine.write("etc/ascendd/qwen2.env", lines)
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    systemctl = bin_dir / "systemctl"
    systemctl.write_text(
        '#!/bin/sh\n[ "$2" = ascendd@qwen2.service ] || exit 1\n'
        "echo LoadState=loaded; echo ActiveState=inactive\n"
        f"echo 'Environment=\"LD_LIBRARY_PATH={machine.environ['LD_LIBRARY_PATH']}\" ASCEND_RT_VISIBLE_DEVICES=1,0'\n"
        "echo 'EnvironmentFiles=/etc/ascendd/qwen2.env (ignore_errors=no)'\n"
        "echo 'EnvironmentFiles=/etc/ascendd/gone.env (ignore_errors=yes)'\n"
    )
    systemctl.chmod(0o755)
    machine.environ = {"PATH": f"{bin_dir}:/usr/bin:/bin"}

    result = machine.diagnose("service-environment", instance="qwen2")["service-environment"]

    assert result.verdict is Verdict.WARN
    assert result.summary == "ASCEND_RT_VISIBLE_DEVICES='1,0' is not a rising list of numbers without blanks"
    assert result.evidence["origin"] == "the environment of ascendd@qwen2.service"


def test_a_container_may_see_more_on_the_bus_than_it_was_given(machine: Machine) -> None:
    """Inside a container the PCI bus is the host's, so only the other three counts must agree."""
    machine.write(".dockerenv", "")
    machine.write("sys/bus/pci/devices/0000:c7:00.0/vendor", "0x19e5\n")
    machine.write("sys/bus/pci/devices/0000:c7:00.0/device", "0xd802\n")

    result = machine.diagnose("npu-presence")["npu-presence"]

    assert result.verdict is Verdict.PASS
    assert result.evidence["counts"] == {"pci": 3, "nodes": 2, "npu_smi": 2, "acl": 2}


def test_the_gate_lets_a_sound_machine_start_and_names_what_stops_another(machine: Machine) -> None:
    """The start's gate runs the fast checks and raises PreflightFailed with the failed check's words."""
    from ascendd.errors import PreflightFailed

    passed = run_gate(machine.config(), machine.environ, root=str(machine.root))
    machine.install_cann("6.0.1")
    with pytest.raises(PreflightFailed, match="cann-version: 6.0.1 .* leaks page-table memory") as caught:
        run_gate(machine.config(), machine.environ, root=str(machine.root))

    assert {result.verdict for result in passed} == {Verdict.PASS}
    assert len(passed) == len(caught.value.facts["results"]) == 5


def test_a_machine_with_a_driver_and_no_card_is_not_taken_for_a_cpu_host(machine: Machine) -> None:
    """A card that fell off the bus leaves its driver behind, so auto still expects an NPU and fails on presence."""
    for path in (machine.root / "sys/bus/pci/devices").iterdir():
        (path / "device").write_text("0xa255\n")
    for path in (machine.root / "dev").iterdir():
        path.unlink()
    machine.answer("info", "abn-dcmi-8005.txt", 187)
    machine.environ.update(FAKE_ACL_COUNT="0")

    result = machine.diagnose("npu-presence")["npu-presence"]

    assert CheckContext(CheckRequest(root=str(machine.root), environ={})).target.is_npu
    assert result.verdict is Verdict.FAIL
    assert "no NPU found (PCI 0, /dev 0, npu-smi unknown, ACL 0); a driver (24.1.rc3) is installed" in result.summary
