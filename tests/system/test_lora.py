"""A real daemon with LoRA adapters over HTTP: used, listed, loaded, refused, unloaded, and there again after a crash."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from loopback_ports import free_ports
from safetensors.numpy import save_file

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

TINY_MODEL = Path(__file__).resolve().parent / "tiny_qwen2.py"
KEY = "k-adapters"
PROMPT = "the quick brown fox jumps over the lazy dog again and again"
# Of the base model: most others make tokens without a text from this prompt.
SEED = 13
RANK, HIDDEN, KV, LAYERS = 4, 64, 32, 2


def write_adapter(folder: Path, seed: int, rank: int = RANK) -> Path:
    """Write an adapter of q and v in PEFT's form, strong enough to change every greedy text."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    tensors = {}
    for layer in range(LAYERS):
        for module, rows in (("q_proj", HIDDEN), ("v_proj", KV)):
            at = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{at}.lora_A.weight"] = rng.normal(0, 0.5, (rank, HIDDEN)).astype(np.float32)
            tensors[f"{at}.lora_B.weight"] = rng.normal(0, 0.5, (rows, rank)).astype(np.float32)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@dataclass
class Instance:
    """A running daemon, the folder that adapters may be loaded from, and one that they may not."""

    process: subprocess.Popen[bytes]
    port: int
    root: Path
    outside: Path
    log: Path

    def ask(self, method: str, path: str, body: object = None, key: str | None = KEY) -> tuple[int, Any]:
        """Return status and JSON of one answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        headers = {"Content-Type": "application/json"} | ({} if key is None else {"Authorization": f"Bearer {key}"})
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def complete(self, model: str, prompt: str = PROMPT) -> tuple[int, Any]:
        """Ask for 12 greedy tokens."""
        body = {"model": model, "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
        return self.ask("POST", "/v1/completions", body)

    def text(self, model: str, prompt: str = PROMPT) -> str:
        """Return the text of 12 greedy tokens."""
        status, answer = self.complete(model, prompt)
        assert status == 200, answer
        assert answer["model"] == model
        text = str(answer["choices"][0]["text"])
        assert len(text) > 3, "too little to tell models apart"
        return text

    def load(self, name: str, path: object) -> tuple[int, Any]:
        """Ask for an adapter to be loaded."""
        return self.ask("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path)})

    def unload(self, name: str) -> tuple[int, Any]:
        """Ask for an adapter to be unloaded."""
        return self.ask("POST", "/v1/unload_lora_adapter", {"lora_name": name})

    def names(self) -> list[str]:
        """Return the names of GET /v1/models."""
        return [card["id"] for card in self.ask("GET", "/v1/models")[1]["data"]]

    def wait_ready(self) -> None:
        """Return once /readyz says 200."""
        deadline = time.monotonic() + 120
        while True:
            try:
                if self.ask("GET", "/readyz", key=None)[0] == 200:
                    return
            except (OSError, http.client.HTTPException):
                pass
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """A daemon with one adapter from its configuration."""
    folder = tmp_path_factory.mktemp("lora")
    command = [sys.executable, str(TINY_MODEL), str(folder / "tiny"), str(SEED)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    root = folder / "adapters"
    write_adapter(root / "fixed", 1)
    write_adapter(root / "extra", 2)
    write_adapter(root / "misshapen", 3, rank=6)
    (root / "empty").mkdir()
    (root / "loop").symlink_to(root / "loop")
    outside = write_adapter(folder / "elsewhere", 4)
    (root / "link").symlink_to(outside)
    (folder / "keys").write_text(f"{KEY}\n")
    (folder / "keys").chmod(0o600)
    (port,) = free_ports(1)
    (folder / "instance.yaml").write_text(
        f"model:\n  path: {folder / 'tiny'}\n  adapter_root: {root}\n"
        f"  adapters: [{{name: fixed, path: {root / 'fixed'}}}]\n"
        f"listen: {{port: {port}, api_key_file: {folder / 'keys'}}}\n"
        "metrics: {enabled: false}\n"
        "engine: {device: cpu, max_num_blocks: 64, num_threads: 1, max_loras: 1}\n"
        "recovery: {backoff_min_s: 0.1, backoff_max_s: 0.2}\n"
    )
    log_path = folder / "daemon.log"
    command = [sys.executable, "-m", "ascendd", "run", "--instance", "lora", "--config", str(folder / "instance.yaml")]
    with log_path.open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        found = Instance(process, port, root, outside, log_path)
        try:
            found.wait_ready()
            yield found
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def test_b104_models_lists_base_and_adapters(instance: Instance) -> None:
    """B104: one entry per name, adapters with their parent, and no path of the disk anywhere."""
    status, answer = instance.ask("GET", "/v1/models")
    cards = {card["id"]: card for card in answer["data"]}

    assert status == 200
    assert {name: card["parent"] for name, card in cards.items()} == {"tiny": None, "fixed": "tiny"}
    assert "/" not in json.dumps(answer)
    assert instance.ask("GET", "/v1/models/fixed") == (200, cards["fixed"])


def test_b80_base_adapter_base_over_http(instance: Instance) -> None:
    """B80: the same prompt under base, adapter, base: base texts are equal, and no cached tokens come from the other."""
    # No other test has this one, so nothing of it is cached.
    prompt = f"only here and once: {PROMPT}"
    answers = [instance.complete(model, prompt)[1] for model in ("tiny", "fixed", "tiny", "fixed")]
    texts = [answer["choices"][0]["text"] for answer in answers]
    assert all(len(text) > 3 for text in texts), "too little to tell models apart"
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]

    assert texts[0] == texts[2] != texts[1] == texts[3]
    assert cached[0] == cached[1] == 0
    assert cached[2] == cached[3] > 0


def test_an_adapter_is_loaded_used_and_unloaded(instance: Instance) -> None:
    """Loaded by a path below the root it answers under its name, also beside another adapter; unloaded it is 404."""
    assert instance.load("extra", "extra")[0] == 200
    assert instance.names() == ["tiny", "fixed", "extra"]
    assert len({instance.text(model) for model in ("tiny", "fixed", "extra")}) == 3
    status, answer = instance.load("extra", instance.root / "extra")
    assert (status, answer["error"]["code"]) == (400, "ASD-M07")

    assert instance.unload("extra")[0] == 200
    assert instance.names() == ["tiny", "fixed"]
    assert instance.complete("extra")[0] == 404
    assert instance.unload("extra")[0] == 404


def test_b78_unknown_name_and_bad_folders(instance: Instance) -> None:
    """B78: an unknown name is 404, a folder that holds no adapter of this model 400; the base model keeps serving."""
    before = instance.text("tiny")
    unknown = instance.complete("lora-x")
    missing = instance.load("a", "nothing-here")
    empty = instance.load("a", instance.root / "empty")
    misshapen = instance.load("a", "misshapen")

    assert (unknown[0], unknown[1]["error"]["code"]) == (404, "model_not_found")
    assert (missing[0], empty[0], misshapen[0]) == (400, 400, 400)
    assert "holds no adapter_config.json" in empty[1]["error"]["message"]
    message = misshapen[1]["error"]["message"]
    assert "model.layers.0.self_attn.q_proj.lora_A has shape [6, 64], expected [4, 64]" in message
    assert str(instance.root) not in message
    assert instance.names() == ["tiny", "fixed"]
    assert instance.text("tiny") == before


@pytest.mark.parametrize("path", ["{outside}", "../elsewhere", "link", "{root}", ".", "/etc", "{root}/../elsewhere"])
def test_nothing_outside_the_root_is_loaded(instance: Instance, path: str) -> None:
    """Absolute paths, dots and links that lead out of model.adapter_root are 403, and the setting is named."""
    status, answer = instance.load("a", path.format(outside=instance.outside, root=instance.root))

    assert (status, answer["error"]["code"]) == (403, "ASD-R15")
    assert "model.adapter_root" in answer["error"]["message"]


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000, "loop/x", "empty/\udcff", "fixed/adapter_config.json"])
def test_what_is_no_folder_is_400_and_the_engine_lives(instance: Instance, path: str) -> None:
    """NUL, a name that no disk takes, links in a circle, half a character, a file: refused, and nobody is harmed."""
    status, answer = instance.load("a", path)

    assert status == 400, answer
    assert instance.text("tiny")


@pytest.mark.parametrize("route", ["load", "unload"])
def test_adapters_are_changed_with_a_key_only(instance: Instance, route: str) -> None:
    """Without a key both routes are 401, and with an empty body 400 that names the field."""
    path = f"/v1/{route}_lora_adapter"

    assert instance.ask("POST", path, {"lora_name": "fixed"}, key=None)[0] == 401
    status, answer = instance.ask("POST", path, {})
    assert (status, answer["error"]["param"]) == (400, "lora_name")


def test_a_crashed_engine_comes_back_with_what_was_changed(instance: Instance) -> None:
    """After kill -9 the fresh engine has the adapter that was loaded over HTTP, and not the one that was unloaded."""
    assert instance.load("extra", "extra")[0] == 200
    assert instance.unload("fixed")[0] == 200
    expected = instance.text("extra")
    children = psutil.Process(instance.process.pid).children()
    (engine,) = [child for child in children if "_engine" in child.cmdline()]
    engine.send_signal(signal.SIGKILL)
    psutil.wait_procs([engine], timeout=120)
    deadline = time.monotonic() + 90
    while instance.ask("GET", "/readyz", key=None)[0] == 200:
        assert time.monotonic() < deadline, "the death was not noticed"
        time.sleep(0.02)
    instance.wait_ready()

    assert instance.names() == ["tiny", "extra"]
    assert instance.text("extra") == expected
    assert instance.complete("fixed")[0] == 404
    assert instance.load("fixed", "fixed")[0] == 200


def test_sighup_takes_up_the_adapters_of_the_file(instance: Instance) -> None:
    """After a reload the model serves what the file lists now; what was loaded over HTTP stays, and nothing restarts."""
    file = instance.log.parent / "instance.yaml"
    text = file.read_text()
    listed = f"adapters: [{{name: second, path: {instance.root / 'fixed'}}}]"
    file.write_text(text.replace(next(line for line in text.splitlines() if "adapters: [" in line).strip(), listed))
    before = [child.pid for child in psutil.Process(instance.process.pid).children()]
    instance.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 120
    while "second" not in instance.names() or "fixed" in instance.names():
        assert time.monotonic() < deadline, instance.log.read_text()
        time.sleep(0.1)

    assert set(instance.names()) == {"tiny", "extra", "second"}
    assert instance.text("second") != instance.text("tiny")
    assert [child.pid for child in psutil.Process(instance.process.pid).children()] == before
    assert '"applied": ["model.adapters"], "needs_restart": []' in instance.log.read_text()
