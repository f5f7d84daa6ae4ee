"""
One model behind both engines: `engine.backend: native` and `vllm`, a real one. Prints one table and the texts.

    python tests/bench/backends.py VENV FOLDER [--systemd] [--keep OUT]

VENV has bin/vllm, FOLDER is a Hugging Face folder or holds the demo's GGUF file, of which one is made. Exit status 1
where an engine is not served, loses a request, or answers greedily in other words than the other one. What vLLM logs
and shows on /metrics goes to OUT, so that the patterns of ascendd/vllm can be held against it. With --systemd each
engine is the unit ascendd@NAME of a throw-away machine, started and stopped by systemctl; needs root and systemd-nspawn.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend_units import Unit, in_machine, install, is_machine

PROMPTS = (
    "The capital of France is",
    "Water boils at a temperature of",
    "Count slowly: one, two, three,",
    "A prime number is a number that",
)
NUM_TOKENS = 32
NUM_STREAMS = 8
READY_TIMEOUT_S = 600.0


@dataclass
class Figures:
    """What one engine did; seconds and tokens per second."""

    ready_s: float = 0.0
    texts: list[str] = field(default_factory=list)
    first_s: float = 0.0
    alone: float = 0.0
    together: float = 0.0
    stop_s: float = 0.0


def hugging_face(folder: Path, target: Path) -> Path:
    """Return `folder` where vLLM can read it, else `target`, made of the GGUF file in it (float32)."""
    if (folder / "config.json").exists() and not (folder / "ascendd-manifest.json").exists():
        return folder
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    (source,) = folder.glob("*.gguf")
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=source.name, dtype="float32")
    weights = {name: w.contiguous() for name, w in model.state_dict().items() if name != "lm_head.weight"}
    target.mkdir(exist_ok=True)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    # The artefact's description is in Hugging Face's words; transformers would write the file's quantization into it.
    for part in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        (target / part).write_bytes((folder / "smollm2-135m" / part).read_bytes())
    return target


class Foreground:
    """`ascendd run` as a process of this one."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, config: str) -> None:
        """Start an instance with this text as its file."""
        run = self._folder / "run"
        run.mkdir(mode=0o700, parents=True)
        path = self._folder / "instance.yaml"
        path.write_text(config)
        env = {**os.environ, "XDG_RUNTIME_DIR": str(run), "RUNTIME_DIRECTORY": str(run)}
        command = [sys.executable, "-m", "ascendd", "run", "--instance", self._name, "--config", str(path)]
        with (self._folder / "log").open("wb") as out:
            self._process = subprocess.Popen(
                command, stdout=out, stderr=out, env={**env, "STATE_DIRECTORY": str(self._folder)}
            )

    def status(self) -> int | None:
        """Return the exit status, None while it runs."""
        return None if self._process is None else self._process.poll()

    def stop(self) -> None:
        """Ask it to leave and wait until it has."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(60)

    def log(self) -> str:
        """Return what it has logged."""
        return (self._folder / "log").read_text(errors="replace")


@contextlib.contextmanager
def served(
    server: Foreground | Unit, engine: dict[str, Any], model: Path, figures: Figures
) -> Iterator[tuple[str, str]]:
    """Run an instance for the length of the block; yields the URLs of its API and of its metrics."""
    ports = []
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            sock = stack.enter_context(socket.socket())
            sock.bind(("127.0.0.1", 0))
            ports.append(sock.getsockname()[1])
    config = {
        "model": {"path": str(model), "name": "m", "dtype": "float32", "max_model_len": 1024},
        "listen": {"port": ports[0]},
        "metrics": {"port": ports[1]},
        "engine": {"device": "cpu", "max_num_seqs": NUM_STREAMS, "kv_cache_memory": "1GiB", **engine},
    }
    url = f"http://127.0.0.1:{ports[0]}"
    begun_s = time.monotonic()
    server.start(json.dumps(config))  # JSON is YAML
    try:
        while not _is_ready(url):
            if (status := server.status()) is not None:
                sys.exit(f"{engine['backend']} ended with {status}:\n{server.log()[-4000:]}")
            if time.monotonic() - begun_s > READY_TIMEOUT_S:
                sys.exit(f"{engine['backend']} was not ready within {READY_TIMEOUT_S:g} s:\n{server.log()[-4000:]}")
            time.sleep(0.2)
        figures.ready_s = time.monotonic() - begun_s
        yield url, f"http://127.0.0.1:{ports[1]}/metrics"
    finally:
        begun_s = time.monotonic()
        server.stop()
        figures.stop_s = time.monotonic() - begun_s
    if status := server.status():
        sys.exit(f"{engine['backend']} left with {status}:\n{server.log()[-4000:]}")


def _is_ready(url: str) -> bool:
    with contextlib.suppress(urllib.error.URLError, OSError):
        urllib.request.urlopen(f"{url}/readyz", timeout=5).close()
        return True
    return False


def complete(url: str, prompt: str) -> tuple[str, float, float]:
    """Stream a greedy answer; return its text, the seconds to its first event and to its end."""
    body = {"model": "m", "prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0, "stream": True}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    begun_s, first_s, text = time.monotonic(), 0.0, ""
    with urllib.request.urlopen(request, timeout=300) as response:
        for line in response:
            if line.startswith(b"data: {"):
                first_s = first_s or time.monotonic() - begun_s
                text += "".join(choice["text"] for choice in json.loads(line[6:])["choices"])
    return text, first_s, time.monotonic() - begun_s


def measure(url: str, figures: Figures) -> None:
    """Ask each prompt alone, then as many as fit the batch at once."""
    complete(url, "warm up")
    answers = [complete(url, prompt) for prompt in PROMPTS]
    figures.texts = [text for text, _, _ in answers]
    figures.first_s = sum(first for _, first, _ in answers) / len(answers)
    figures.alone = (NUM_TOKENS - 1) * len(answers) / sum(total - first for _, first, total in answers)
    begun_s = time.monotonic()
    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        list(pool.map(lambda number: complete(url, PROMPTS[number % len(PROMPTS)]), range(NUM_STREAMS)))
    figures.together = NUM_TOKENS * NUM_STREAMS / (time.monotonic() - begun_s)


def main() -> int:
    """Serve, measure and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("venv", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--systemd", action="store_true", help="as units of a throw-away machine")
    parser.add_argument("--keep", type=Path, metavar="OUT")
    args = parser.parse_args()
    venv, folder = args.venv.absolute(), args.folder.absolute()
    if args.keep:
        args.keep.mkdir(parents=True, exist_ok=True)
    if args.systemd and not is_machine():
        keep = ["--keep", str(args.keep.absolute())] if args.keep else []
        return in_machine([__file__, str(venv), str(folder), "--systemd", *keep], [venv, folder, args.keep])
    with tempfile.TemporaryDirectory(prefix="backends-") as temporary:
        model = hugging_face(folder, Path(temporary) / "model")
        if args.systemd:
            model = install([venv], model)
        vllm = {"venv": str(venv), "args": {"generation-config": "vllm"}}
        engines = {"native": {"backend": "native"}, "vllm": {"backend": "vllm", "enforce_eager": True, "vllm": vllm}}
        found = {}
        for name, engine in engines.items():
            figures = found[name] = Figures()
            server = Unit(name) if args.systemd else Foreground(name, Path(temporary) / name)
            with served(server, engine, model, figures) as (url, metrics):
                measure(url, figures)
                time.sleep(2.5)  # the page is renewed once a second
                page = urllib.request.urlopen(metrics, timeout=10).read()
            if args.keep:
                (args.keep / f"{name}.metrics").write_bytes(page)
                (args.keep / f"{name}.log").write_text(server.log())
    print(f"each {'the unit of a booted machine' if args.systemd else 'run as a process'}")
    print("| engine | ready s | first token s | tokens/s alone | tokens/s of 8 | stop s |\n|---|---|---|---|---|---|")
    for name, f in found.items():
        print(f"| {name} | {f.ready_s:.1f} | {f.first_s:.3f} | {f.alone:.1f} | {f.together:.1f} | {f.stop_s:.1f} |")
    same = [ours == theirs for ours, theirs in zip(found["native"].texts, found["vllm"].texts, strict=True)]
    print(f"the same greedy text: {sum(same)} of {len(same)}")
    for prompt, native, theirs, is_same in zip(PROMPTS, found["native"].texts, found["vllm"].texts, same, strict=True):
        print(f"  {prompt!r}: native {native!r}{'' if is_same else f', vllm {theirs!r}'}")
    return 0 if all(same) and all(any(figures.texts) for figures in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
