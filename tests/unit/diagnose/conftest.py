"""Healthy logs with warnings in them, and the cases of tests/fixtures/faults.yaml."""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import yaml

from ascendd.diagnose.catalogue import load_catalogue
from ascendd.diagnose.scanner import scan
from ascendd.diagnose.source import Source
from ascendd.diagnose.verdict import Report, conclude

FAULTS = Path(__file__).resolve().parent.parent.parent / "fixtures" / "faults.yaml"
START = datetime.datetime(2026, 3, 1, 4, 0, 0, tzinfo=datetime.timezone.utc)
NUM_RANKS = 8


class HealthyLog:
    """Lines of runs that went well: this daemon, CANN's plog, vLLM workers, kernel; pids, paths and times are fresh."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.moment = START + datetime.timedelta(seconds=self.random.randrange(86_400))
        self.pids = [self.random.randrange(1000, 999_999) for _ in range(NUM_RANKS)]
        self.home = f"/data/{self.random.randrange(16**6):06x}"
        self.shapes: list[Callable[[int], str]] = [
            self._request, self._request, self._request, self._scheduler, self._stats, self._plog, self._plog,
            self._vllm, self._vllm, self._warning, self._vendor_warning, self._kernel, self._smi,
        ]  # fmt: skip

    def tick(self) -> datetime.datetime:
        """Move the clock on by some milliseconds."""
        self.moment += datetime.timedelta(milliseconds=self.random.randrange(1, 400))
        return self.moment

    def lines(self, count: int) -> list[str]:
        """Return `count` lines of ranks in random order."""
        return [self.random.choice(self.shapes)(self.random.randrange(NUM_RANKS)) for _ in range(count)]

    def plog_time(self) -> str:
        """A time stamp as CANN writes it."""
        return (
            self.tick().strftime("%Y-%m-%d-%H:%M:%S.")
            + f"{self.random.randrange(1000):03d}.{self.random.randrange(1000):03d}"
        )

    def _daemon(self, level: str, event: str, **facts: object) -> str:
        stamp = self.tick().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return json.dumps(
            {"timestamp": stamp, "level": level, "event": event, **facts, "instance": "qwen2", "role": "api"}
        )

    def _request(self, rank: int) -> str:
        return self._daemon(
            "info", "api.request", method="POST", route="/v1/chat/completions", status=self.random.choice([200, 200, 429]),
            duration_s=round(self.random.random() * 4, 4), request_id=f"req-{self.random.randrange(16**32):032x}",
            finish_reason="stop", prompt_tokens=self.random.randrange(9000), cached_tokens=self.random.choice([0, 512]),
            completion_tokens=self.random.randrange(512), first_token_s=round(self.random.random(), 4),
        )  # fmt: skip

    def _scheduler(self, rank: int) -> str:
        return self._daemon(
            "info", "engine.step", tokens=self.random.randrange(4096), free_blocks=self.random.randrange(507_999)
        )

    def _stats(self, rank: int) -> str:
        return self._daemon(
            "info", "engine.stats", kv_usage=round(self.random.random(), 3), bytes=self.random.randrange(10**9)
        )

    def _plog(self, rank: int) -> str:
        texts = [
            f"[hccl_communicator.cc:{self.random.randrange(900)}] [{self.pids[rank]}] Entry-HcclAllReduce: tag[all_{rank}], count[{self.random.randrange(9999)}]",
            f"[externalinput.cc:{self.random.randrange(900)}] [{self.pids[rank]}] HCCL_EXEC_TIMEOUT set by default to [1836]s",
            "[externalinput.cc:212] HCCL_CONNECT_TIMEOUT is not set, default value is 120 s",
            f"[runtime.cc:88] open device {rank} success, result = 0, cost 507033 us",
            "[err.cc:4] aicore error count: 0, aivec error count: 0",
            "[sig.cc:2] SIGBUS handler installed",
            "bind on address 127.0.0.1:60000 failed: address already in use, trying 60001",
            "[stream.cc:71] aicore timeout is set to 1100 s; notify wait finished",
        ]
        module = self.random.choice(["RUNTIME", "HCCL", "GE", "ASCENDCL"])
        level = self.random.choice(["INFO", "EVENT", "INFO"])
        return f"[{level}] {module}({self.pids[rank]},python3):{self.plog_time()} {self.random.choice(texts)}"

    def _vllm(self, rank: int) -> str:
        stamp = self.tick().strftime("%m-%d %H:%M:%S")
        texts = [
            "Available KV cache memory: 21.40 GiB",
            f"Loading model weights took {self.random.randrange(9, 60)}.5 GB",
            "Engine 000: Avg prompt throughput: 50701.5 tokens/s, Running: 3 reqs, GPU KV cache usage: 12.7%",
            "No available shared memory broadcast block found in 60 seconds. This typically happens when some processes are hanging or doing some time-consuming work.",
            "Using max model len 32768; Maximum concurrency for 32,768 tokens per request: 13.01x",
            f"Capturing ACL graphs (mixed prefill-decode): {self.random.randrange(100)}%",
        ]
        return f"(Worker_TP{rank} pid={self.pids[rank]}) INFO {stamp} [worker.py:{self.random.randrange(900)}] {self.random.choice(texts)}"

    def _warning(self, rank: int) -> str:
        stamp = self.tick().strftime("%m-%d %H:%M:%S")
        texts = [
            "Port 29500 is already in use, trying port 29501 instead.",
            "UserWarning: AutoNonVariableTypeMode is deprecated and will be removed in 1.10 release.",
            "The tokenizer has no fast version; tokenization may be slow",
            "Model has no chat template in tokenizer_config.json; reading chat_template.jinja",
            "Dtype bfloat16 is not fast here: computing in float32",
            "Request abc was aborted by the client; out of 12 queued, 1 aborted",
            "Failed to import vllm._C (optional): No module named 'vllm._C'",
            "Triton is not installed or not compatible with this torch; falling back",
            f"retrying download of {self.home}/model-00003-of-00004.safetensors after timeout",
        ]
        return f"(Worker_TP{rank} pid={self.pids[rank]}) WARNING {stamp} [config.py:12] {self.random.choice(texts)}"

    def _vendor_warning(self, rank: int) -> str:
        texts = [
            "[dev_info.cc:31] Get soc version Ascend910B3, version check finished, not match optional feature list",
            f"[op_cache.cc:44] kernel cache miss for aclnnMatmul, compile in {self.home}/kernel_meta, result 0",
            "[mem_pool.cc:207001] malloc from pool: free list empty, extend",
            "[heartbeat.cc:9] heartbeat is late by 3 ms",
            "[ver.cc:5] driver version 25.2.0 does not match the recommended version 25.5.0",
            "[tsd.cc:8] device busy for 3 ms, retried once, ret=0",
            "[notify.cc:3] EI0002 notify wait timeout once, retried",
            "[tls.cc:20] TLS switch is off for all devices",
            f"[plog] log file {self.home}/ascend/log/debug/plog/plog-{self.pids[rank]}_20260301040000.log rotated",
        ]
        return f"[WARNING] RUNTIME({self.pids[rank]},python3):{self.plog_time()} {self.random.choice(texts)}"

    def _kernel(self, rank: int) -> str:
        stamp = self.tick().strftime("%b %d %H:%M:%S")
        texts = [
            "pcieport 0000:00:02.0: AER: Corrected error message received from 0000:01:00.0",
            "enp3s0: Link is Down",
            f"[drv_devmng] device({rank}) heartbeat normal",
            "systemd[1]: ascendd@qwen2.service: Scheduled restart job, restart counter is at 1.",
        ]
        return f"{stamp} host kernel: {self.random.choice(texts)}"

    def _smi(self, rank: int) -> str:
        return self.random.choice(
            [
                f"| {rank}     910B3               | OK            | 96.3        41                0    / 0             |",
                f"| 0                         | 0000:C1:00.0  | 0           0    / 0          {self.random.randrange(3000, 3500)} / 65536         |",
                f"| No running processes found in NPU {rank}                                                            |",
            ]
        )


def diagnose_texts(*texts: str) -> Report:
    """Diagnose logs given as text, in that order."""
    catalogue = load_catalogue()
    scans = [scan(catalogue, Source(f"rank{number}.log", _blocks(text)), number) for number, text in enumerate(texts)]
    return conclude(catalogue, scans)


def _blocks(text: str, size: int = 65_536) -> Iterable[bytes]:
    data = text.encode("utf-8", "surrogatepass")
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.fixture(scope="session")
def faults() -> list[dict[str, str]]:
    """Every case of the fixture."""
    return list(yaml.safe_load(FAULTS.read_text(encoding="utf-8")))


@pytest.fixture(scope="session")
def diagnose() -> Callable[..., Report]:
    """The function that diagnoses logs given as text."""
    return diagnose_texts


@pytest.fixture(scope="session")
def healthy() -> type[HealthyLog]:
    """The maker of healthy logs; its argument is the seed."""
    return HealthyLog
