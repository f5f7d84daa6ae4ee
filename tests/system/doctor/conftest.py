"""The fake machine that the doctor is run on: a server of eight 910B3 chips with a model packed for two ranks."""

import json
import struct
import time
from pathlib import Path

import fake_machine
import pytest

from ascendd.preflight.check import CheckResult
from ascendd.preflight.context import CheckRequest
from ascendd.preflight.discover import find_checks, select
from ascendd.preflight.runner import run_checks


class Machine(fake_machine.FakeMachine):
    """A healthy fake host with a model, and the doctor run on it."""

    def __init__(self, root: Path, acl_library: Path) -> None:
        super().__init__(root, acl_library)
        self.model = root / "models/qwen2-tiny"
        self.setenv(TOKEN=str(root))
        self.write_model()

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
        self.mark()
        made = CheckRequest(config_json=config_json, root=str(self.root), **request)
        results = run_checks(select(find_checks(), only, deep=made.deep), made)
        return {result.check_id: result for result in results}

    def left_running(self) -> list[str]:
        """Return the processes that still carry this machine's TOKEN after a while; the kernel reaps in its time."""
        deadline = time.monotonic() + 90
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
    return fake_machine.build_acl(tmp_path_factory.mktemp("acl"))


@pytest.fixture
def machine(tmp_path: Path, acl_library: Path) -> Machine:
    """A sound machine, to be damaged."""
    return Machine(tmp_path / "root", acl_library)
