"""The recorded machine that the doctor is run on: an Atlas with two 910B chips, below a folder."""

import json
import struct
import subprocess
import time
from pathlib import Path

import pytest

from ascendd.preflight.check import CheckResult
from ascendd.preflight.context import CheckRequest
from ascendd.preflight.discover import find_checks, select
from ascendd.preflight.runner import run_checks

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
RECORDINGS = FIXTURES / "npu-smi"

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
        self.root, self.answers, self.recordings = root, root / "answers", RECORDINGS
        self.toolkit = root / "usr/local/Ascend/ascend-toolkit/8.2.RC1"
        self.model = root / "models/qwen2-tiny"
        self.environ = {
            "PATH": "/usr/bin:/bin",
            "TOKEN": str(root),
            "HOME": "/root",
            "ASCEND_HOME_PATH": "/usr/local/Ascend/ascend-toolkit/latest",
            "ASCEND_TOOLKIT_HOME": "/usr/local/Ascend/ascend-toolkit/latest",
            "ASCEND_OPP_PATH": "/usr/local/Ascend/ascend-toolkit/latest/opp",
            "ASCEND_AICPU_PATH": "/usr/local/Ascend/ascend-toolkit/latest",
            "PYTHONPATH": "/usr/local/Ascend/ascend-toolkit/latest/python/site-packages",
            "LD_LIBRARY_PATH": "/usr/local/Ascend/driver/lib64/driver:/usr/local/Ascend/ascend-toolkit/latest/lib64",
        }
        self.write(".fake-host", "{}")
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
        """Write a file below the root."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def edit(self, path: str, old: str, new: str) -> None:
        """Replace text in a file that is there."""
        text = (self.root / path).read_text()
        assert old in text, f"{path} holds no {old}"
        self.write(path, text.replace(old, new))

    def answer(self, question: str, recording: str, status: int = 0) -> None:
        """Have npu-smi answer `question` (info, board, ecc, health) with a recording."""
        self.write(f"answers/{question}.txt", (RECORDINGS / recording).read_text())
        self.write(f"answers/{question}.status", str(status))

    def install_cann(self, version: str) -> None:
        """Install CANN of `version` at the same place."""
        self.write(
            "usr/local/Ascend/ascend-toolkit/8.2.RC1/aarch64-linux/ascend_toolkit_install.info",
            CANN_INFO.format(version=version),
        )

    def log_firmware(self, chip: str) -> None:
        """Have the log say that a firmware package for `chip` was installed last."""
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
        (self.model / "tokenizer.json").write_text("{}")
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
        """Return the configuration of an instance with this model."""
        from ascendd.config.load import convert

        return convert({"model": {"path": str(self.model)}, "parallel": {"tensor_parallel_size": tp_size}})

    def diagnose(self, *only: str, tp_size: int = 2, **request: object) -> dict[str, CheckResult]:
        """Run the checks named, all without a name, and return their results by id."""
        import msgspec

        config_json = msgspec.json.encode(self.config(tp_size)).decode()
        made = CheckRequest(config_json=config_json, root=str(self.root), environ=self.environ, **request)
        results = run_checks(select(find_checks(), only, deep=made.deep), made)
        return {result.check_id: result for result in results}

    def left_running(self) -> list[str]:
        """Return the processes that still carry this machine's TOKEN five seconds on; the kernel reaps in its time."""
        deadline = time.monotonic() + 5
        while (found := self._with_token()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return found

    def _with_token(self) -> list[str]:
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if f"TOKEN={self.root}".encode() in path.read_bytes().split(b"\0"):
                    found.append((path.parent / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        return found


@pytest.fixture(scope="session")
def acl_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in libascendcl, built once."""
    library = tmp_path_factory.mktemp("acl") / "libascendcl.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, FIXTURES / "fake_acl.c"], check=True)
    return library


@pytest.fixture
def machine(tmp_path: Path, acl_library: Path) -> Machine:
    """A sound machine, to be damaged."""
    return Machine(tmp_path / "root", acl_library)
