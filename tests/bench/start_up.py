"""
How long the engine process takes from its start to ready, and what memory it takes, beside a bare `import torch`.

    python tests/bench/start_up.py MODEL [--rounds 5] [--weight-dtype float32 float16 int8]

The process is the daemon's own, started as the supervisor starts it, with its environment; this script is at the other
end of its control link. A bare `import torch` runs in turn with it, so that both meet the same machine and page cache.
Memory is the peak of resident memory (VmHWM), mapped files included. The bound beside it is 1.15 x weights + KV cache +
250 MB above the bare import; the cache takes memory as it is used, so little of it is in the peak. Judges nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ascendd.config.schema import EngineSection, InstanceConfig, ModelSection
from ascendd.ipc.channel import BlockingChannel, socket_pair
from ascendd.ipc.messages import ChildFault, Configure, ControlMessage, Progress, Ready, Role
from ascendd.supervisor.spec import build_specs, usable_cores

TIMEOUT_S = 120.0
MB = 1e6
TORCH = "import torch; print(open('/proc/self/status').read(), flush=True)"


@dataclass
class Start:
    """One start: seconds to ready, the peak in MB, when each phase was first told of, and what Ready said."""

    seconds: float
    peak_mb: float
    phases: dict[str, float] = field(default_factory=dict)
    facts: dict[str, str | int] = field(default_factory=dict)


def peak_mb(status: str) -> float:
    """Return VmHWM of a /proc/PID/status in MB."""
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024 / MB


def bare_torch(env: dict[str, str]) -> Start:
    """Start an interpreter that imports torch and no more."""
    begun = time.monotonic()
    with subprocess.Popen([sys.executable, "-c", TORCH], stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        process.stdout.readline()
        took = time.monotonic() - begun
        status = process.stdout.read()
    return Start(took, peak_mb(status))


def engine(config: InstanceConfig, argv: tuple[str, ...], env: dict[str, str]) -> Start:
    """Start the engine process, wait until it is ready and end it."""
    ours, theirs = socket_pair()
    command = [*argv, "--control-fd", str(theirs.fileno())]
    begun = time.monotonic()
    with subprocess.Popen(command, env=env, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE) as process:
        theirs.close()
        channel: BlockingChannel[ControlMessage] = BlockingChannel(ours, ControlMessage)
        channel.send(Configure(msgspec.json.encode(config)))
        phases: dict[str, float] = {}
        try:
            while (message := channel.recv(TIMEOUT_S)) is not None:
                at = time.monotonic() - begun
                if isinstance(message, Progress):
                    phases.setdefault(message.phase, at)
                elif isinstance(message, ChildFault):
                    sys.exit(f"the engine ended: {message.fault.message}")
                elif isinstance(message, Ready):
                    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
                    return Start(at, peak_mb(status), phases, dict(message.facts))
        finally:
            channel.close()
            process.kill()
    sys.exit(f"the engine was not ready within {TIMEOUT_S:g} s")


def main() -> None:
    """Print one line for each weight format."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--weight-dtype", nargs="+", default=["auto"], metavar="FORMAT")
    args = parser.parse_args()
    model = str(args.model.absolute())
    print("weights   ready s  import torch s  difference s   peak MB  import torch MB  weights + KV MB  bound MB")
    for weight_dtype in args.weight_dtype:
        config = InstanceConfig(
            model=ModelSection(path=model),
            engine=EngineSection(weight_dtype=weight_dtype),
        )
        specs = build_specs(config, "bench", kind="cpu", environ=os.environ, num_cores=usable_cores())
        spec = specs[Role.ENGINE]
        engine(config, spec.argv, dict(spec.env))  # the first brings everything into the page cache
        starts, bare = [], []
        for _ in range(args.rounds):
            bare.append(bare_torch(dict(spec.env)))
            starts.append(engine(config, spec.argv, dict(spec.env)))
        ready, torch_s = (statistics.median(start.seconds for start in kind) for kind in (starts, bare))
        peak, torch_mb = (max(start.peak_mb for start in kind) for kind in (starts, bare))
        facts = starts[0].facts
        kv = int(facts["num_blocks"]) * int(facts["block_size"]) * int(facts["kv_bytes_per_token"]) / MB
        weights = int(facts["weights_bytes"]) / MB
        bound = 1.15 * weights + kv + 250 + torch_mb
        print(
            f"{weight_dtype:<8} {ready:>8.2f} {torch_s:>15.2f} {ready - torch_s:>13.2f} {peak:>9.0f} {torch_mb:>16.0f}"
            f" {weights:>8.0f} + {kv:<6.0f} {bound:>8.0f}"
        )
        median = sorted(starts, key=lambda start: start.seconds)[len(starts) // 2]
        told = ", ".join(f"{phase} {at:.2f}" for phase, at in median.phases.items())
        print(f"          phases of the median start, s: {told}, ready {median.seconds:.2f}", flush=True)


if __name__ == "__main__":
    main()
