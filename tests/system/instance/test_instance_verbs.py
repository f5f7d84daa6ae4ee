"""`ascendd instance` on a fake server of eight 910B3 chips: files, keys and drop-ins, and what is refused."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from fake_machine import FakeMachine

from ascendd.cli import instance_draft
from ascendd.cli.app import main
from ascendd.config.load import load_file
from ascendd.instances import store as store_module

pytestmark = pytest.mark.system
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 2, "hidden_size": 64,
    "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
    "max_position_embeddings": 2048, "dtype": "bfloat16",
}  # fmt: skip


class Server(FakeMachine):
    """The fake server, a model beside it, and the command line on both."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "host")
        self.model = folder / "model"
        self.model.mkdir()
        (self.model / "config.json").write_text(json.dumps(CONFIG))
        (self.model / "tokenizer.json").write_text("{}")

    def instance(self, *words: str) -> int:
        """Run `ascendd instance` on this server."""
        return main(["instance", *words, "--host-root", str(self.root)])

    def create(self, name: str, *flags: str) -> int:
        return self.instance("create", name, "--model", str(self.model), *flags)

    def file(self, name: str) -> Path:
        return self.root / f"etc/ascendd/instances/{name}.yaml"

    def drop_in(self, name: str) -> Path:
        return self.root / f"etc/systemd/system/ascendd@{name}.service.d/50-devices.conf"

    def tree(self) -> set[str]:
        return {str(path) for place in ("etc/ascendd", "etc/systemd") for path in (self.root / place).rglob("*")}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    # The folders of tests lie where a real unit sees nothing; the rule itself has a test of its own.
    monkeypatch.setattr(instance_draft, "hidden_from_service", lambda _path: None)
    return Server(tmp_path)


def test_create_confines_the_instance_to_its_chips(server: Server) -> None:
    """File, key and drop-in are there; the file says what was asked, the drop-in what is near those chips."""
    assert server.create("qwen2", "--devices", "2-3", "--host", "0.0.0.0", "--max-num-seqs", "8") == 0
    config = load_file(server.file("qwen2"))
    key = server.root / "etc/ascendd/keys/qwen2"
    drop_in = server.drop_in("qwen2").read_text().splitlines()

    assert (config.parallel.devices, config.parallel.tensor_parallel_size) == ([2, 3], 2)
    assert (config.engine.device, config.engine.max_num_seqs, config.listen.host) == ("npu", 8, "0.0.0.0")
    assert config.listen.api_key_file == "/etc/ascendd/keys/qwen2"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert len(key.read_text().splitlines()[-1]) >= 40
    assert stat.S_IMODE(server.file("qwen2").stat().st_mode) == 0o640
    assert {"DeviceAllow=/dev/davinci2 rw", "DeviceAllow=/dev/davinci3 rw", "CPUAffinity=96-119", "NUMAMask=4",
            "Environment=ASCEND_RT_VISIBLE_DEVICES=2,3"} <= set(drop_in)  # fmt: skip
    assert "DeviceAllow=/dev/davinci0 rw" not in drop_in


def test_the_key_is_never_shown(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    """Output names the file of the key, not the key."""
    server.create("qwen2", "--keys")
    key = (server.root / "etc/ascendd/keys/qwen2").read_text().splitlines()[-1]
    said = "".join(capfd.readouterr())

    assert "/etc/ascendd/keys/qwen2" in said
    assert key not in said


def test_further_instances_take_what_is_free(server: Server) -> None:
    """Each takes chips of one NUMA node, and ports, that no earlier one has."""
    for name in ("a", "b", "c"):
        assert server.create(name, "--tensor-parallel-size", "2") == 0
    configs = [load_file(server.file(name)) for name in ("a", "b", "c")]

    assert [config.parallel.devices for config in configs] == [[0, 1], [2, 3], [4, 5]]
    assert [config.listen.port for config in configs] == [8000, 8001, 8002]
    assert len({config.metrics.port for config in configs}) == 3
    assert [config.listen.api_key_file for config in configs] == [None] * 3


@pytest.mark.parametrize(
    ("flags", "status", "said"),
    [
        (("--devices", "1"), 64, "1 is that of instance a"),
        (("--devices", "8"), 64, "device 8 is not on this host; there are: 0 to 7"),
        (("--devices", "x"), 64, "write numbers and ranges"),
        (("--devices", "4", "--port", "8000"), 64, "listen.port 8000 is that of instance a"),
        (("--tensor-parallel-size", "8"), 71, "8 free device(s) are wanted and 6 are free of 8"),
        (("--devices", "4", "--max-num-blocks", "100000000"), 69, "does not fit"),
        (("--devices", "4", "--max-num-seqz", "4"), 64, "did you mean --max-num-seqs"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(server, capfd, flags, status, said) -> None:
    """Devices and ports of others, devices that are not there, and a plan that does not fit: nothing is left behind."""
    server.create("a", "--devices", "0-1")
    before = server.tree()

    assert server.create("b", *flags) == status
    assert said in capfd.readouterr().err
    assert server.tree() == before


def test_a_model_that_the_unit_cannot_see_is_refused(server, capfd, monkeypatch) -> None:
    """What lies in a home or in /tmp is there for root and hidden from the service."""
    monkeypatch.setattr(instance_draft, "hidden_from_service", store_module.hidden_from_service)

    assert store_module.hidden_from_service("/root/models/qwen2") is not None
    assert store_module.hidden_from_service("/var/lib/ascendd/models/qwen2") is None
    monkeypatch.setattr(server, "model", Path("/home/op/qwen2"))
    assert server.create("qwen2") != 0
    assert "hides /home from the service (ProtectHome)" in capfd.readouterr().err


def test_a_write_that_fails_leaves_nothing(server, monkeypatch) -> None:
    """Where the file itself cannot be written, key and drop-in go again."""
    real = store_module._replace

    def replace(path: Path, *rest: object) -> None:
        if path.suffix == ".yaml":
            raise OSError(28, "No space left on device", str(path))
        real(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(store_module, "_replace", replace)

    assert server.create("qwen2", "--keys") == 71
    assert not [path for path in server.tree() if Path(path).is_file()]


def test_edit_checks_before_it_replaces(server, capfd, tmp_path) -> None:
    """A file with a fault never takes the old one's place; a good one moves the drop-in along."""
    server.create("qwen2", "--devices", "0")
    old, new = server.file("qwen2").read_text(), tmp_path / "new.yaml"
    new.write_text(old.replace("max_num_seqs", "max_seqs") + "engine2: {}\n")
    assert server.instance("edit", "qwen2", "--from", str(new)) == 78
    assert "engine2" in capfd.readouterr().err
    assert server.file("qwen2").read_text() == old
    new.write_text(f"# mine\nmodel: {{path: {server.model}}}\nparallel: {{devices: [4]}}\n")

    assert server.instance("edit", "qwen2", "--from", str(new)) == 0
    assert server.file("qwen2").read_text().startswith("# mine\n")
    assert "CPUAffinity=0-23" in server.drop_in("qwen2").read_text().splitlines()


def test_list_delete_and_topology(server, capfd) -> None:
    """Instances are listed with what they use, the topology names who has which chip, and delete takes it all back."""
    before = server.tree()
    server.create("a", "--devices", "0-1", "--keys")
    (server.drop_in("a").parent / "override.conf").write_text("[Service]\nNice=1\n")
    capfd.readouterr()
    server.instance("list", "--json")
    (listed,) = json.loads(capfd.readouterr().out)
    server.instance("topology", "--json")
    topology = json.loads(capfd.readouterr().out)
    assert server.instance("delete", "a") == 0

    assert (listed["name"], listed["devices"], listed["address"]) == ("a", [0, 1], "127.0.0.1:8000")
    assert [chip["instance"] for chip in topology["chips"]] == ["a", "a"] + [None] * 6
    assert [(chip["cpus"], chip["numa_nodes"]) for chip in topology["chips"][:3:2]] == [
        ("144-167", [6]),
        ("96-119", [4]),
    ]
    assert {"nodes": [0, 7], "link": "HCCS"} in topology["links"]
    left = {Path(path).name for path in server.tree() - before if Path(path).is_file()}
    assert left == {"override.conf"}
    assert server.instance("delete", "a") == 78


def test_a_host_without_npus_closes_all_devices(server, capfd) -> None:
    """On a CPU host the instance is one of the CPU, and --devices is refused."""
    server.remove("sys/bus/pci/devices")
    assert server.create("tiny", "--devices", "0") == 64
    assert "no NPU is on the bus" in capfd.readouterr().err

    assert server.create("tiny", "--max-num-blocks", "64") == 0
    assert load_file(server.file("tiny")).engine.device == "cpu"
    assert "DevicePolicy=closed" in server.drop_in("tiny").read_text()
    assert "DeviceAllow" not in server.drop_in("tiny").read_text()
