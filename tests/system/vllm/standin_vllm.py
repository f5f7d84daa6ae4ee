"""
A stand-in for `vllm serve`: its log lines, its metrics, its API and its ways to fail, without a model.

    vllm serve MODEL --served-model-name NAME --uds PATH ...

MODEL/standin.json may hold {"starts": [step, ...]}; start number n follows step n, the last one repeats. A step may have
fail (lines to log before leaving) with status, load_s, stuck (it stays at 40% of its weights), ignore_term, token_s,
mute (a prompt with that word gets no token; MODEL/muted tells that one came).
A prompt with one of these words has an effect: CRASH (SIGSEGV), FATAL (the engine core dies, vLLM leaves with 1),
ACTOR (a worker of Ray dies, vLLM leaves with 1), HANG (no token any more, of anybody), DEAF (the server itself stops),
KILLED (SIGKILL, as the kernel does).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from aiohttp import web

VERSION = "0.32.0"
MAX_MODEL_LEN = 512
NUM_BLOCKS, BLOCK_SIZE = 128, 16


def say(text: str, level: str = "INFO", who: str = "APIServer", end: str = "\n") -> None:
    """Log as vLLM does."""
    stamp = time.strftime("%m-%d %H:%M:%S")
    sys.stdout.write(f"({who} pid={os.getpid()}) {level} {stamp} [standin.py:1] {text}{end}")
    sys.stdout.flush()


class StandIn:
    """The server and its engine, which gives one word for a token."""

    def __init__(self, args: argparse.Namespace, step: dict) -> None:
        self.args, self.step = args, step
        self.name = args.served_model_name
        self.token_s = float(step.get("token_s", 0.005))
        self.running = 0
        self.prompt_tokens = self.generation_tokens = self.num_steps = 0
        self.finished = {"stop": 0, "length": 0, "abort": 0}
        self.hangs = False

    async def token(self) -> None:
        """Compute one token, or none for ever."""
        await asyncio.sleep(self.token_s)
        while self.hangs:
            await asyncio.sleep(3600)
        self.generation_tokens += 1
        self.num_steps += 1

    def obey(self, text: str) -> None:
        """Follow the words of a prompt."""
        if "CRASH" in text:
            os.kill(os.getpid(), signal.SIGSEGV)
        if "KILLED" in text:
            os.kill(os.getpid(), signal.SIGKILL)
        if "HANG" in text:
            self.hangs = True
        if "DEAF" in text:
            time.sleep(3600)
        if "FATAL" in text:
            say("EngineCore encountered a fatal error.", "ERROR", "EngineCore_DP0")
            say("torch.OutOfMemoryError: NPU out of memory. Tried to allocate 2.00 GiB", "ERROR", "EngineCore_DP0")
            os._exit(1)
        if "ACTOR" in text:
            say("ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.", "ERROR")
            os._exit(1)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a completion or a chat."""
        body = await request.json()
        is_chat = "messages" in body
        if body.get("model") != self.name:
            error = {
                "message": f"The model `{body.get('model')}` does not exist.",
                "type": "NotFoundError",
                "code": 404,
            }
            return web.json_response({"error": error}, status=404)
        text = json.dumps(body.get("messages", body.get("prompt")))
        num_prompt = len(text.split())
        num_tokens = int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
        if num_prompt + num_tokens > MAX_MODEL_LEN:
            error = {"message": f"This model's maximum context length is {MAX_MODEL_LEN} tokens.", "code": 400}
            return web.json_response({"error": {**error, "type": "BadRequestError"}}, status=400)
        self.obey(text)
        usage = {"prompt_tokens": num_prompt, "completion_tokens": num_tokens, "total_tokens": num_prompt + num_tokens}
        self.running += 1
        self.prompt_tokens += num_prompt
        ended = "abort"
        try:
            if self.step.get("mute", "\0") in text:
                (Path(self.args.model) / "muted").touch()
                await asyncio.sleep(3600)
            if not body.get("stream"):
                for _ in range(num_tokens):
                    await self.token()
                ended = "length"
                words = " ".join(f"w{number}" for number in range(num_tokens))
                part = {"message": {"role": "assistant", "content": words}} if is_chat else {"text": words}
                choice = {"index": 0, "finish_reason": "length", **part}
                return web.json_response({"id": "x", "model": self.name, "choices": [choice], "usage": usage,
                                          "seen": body, "request_id": request.headers.get("X-Request-Id")})  # fmt: skip
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
            await response.prepare(request)
            for number in range(num_tokens):
                await self.token()
                word = f"w{number} " + "x" * int(body.get("padding", 0))
                part = {"delta": {"content": word}} if is_chat else {"text": word}
                last = "length" if number == num_tokens - 1 else None
                chunk = {"id": "x", "choices": [{"index": 0, **part, "finish_reason": last}]}
                await response.write(b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n")
            if (body.get("stream_options") or {}).get("include_usage"):
                chunk = {"id": "x", "choices": [], "usage": usage}
                await response.write(b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n")
            await response.write(b"data: [DONE]\n\n")
            ended = "length"
            return response
        finally:
            self.running -= 1
            self.finished[ended] += 1

    async def metrics(self, _request: web.Request) -> web.Response:
        """Show the figures under vLLM's names."""
        label = f'{{engine="0",model_name="{self.name}"}}'
        values = {
            "num_requests_running": ("gauge", self.running), "num_requests_waiting": ("gauge", 0),
            "kv_cache_usage_perc": ("gauge", 0.25 if self.running else 0.0),
            "prompt_tokens_total": ("counter", self.prompt_tokens),
            "generation_tokens_total": ("counter", self.generation_tokens),
        }  # fmt: skip
        lines = ["# HELP python_info none of ours", "# TYPE python_info gauge", "python_info 1.0"]
        for name, (kind, value) in values.items():
            lines += [f"# HELP vllm:{name} Help.", f"# TYPE vllm:{name} {kind}", f"vllm:{name}{label} {float(value)}"]
        lines += ["# HELP vllm:request_success_total Help.", "# TYPE vllm:request_success_total counter"]
        for reason, count in self.finished.items():
            lines.append(f'vllm:request_success_total{{engine="0",finished_reason="{reason}"}} {float(count)}')
        lines += ["# HELP vllm:cache_config_info Help.", "# TYPE vllm:cache_config_info gauge"]
        lines.append(f'vllm:cache_config_info{{block_size="{BLOCK_SIZE}",num_gpu_blocks="{self.num_blocks}"}} 1.0')
        return web.Response(text="\n".join(lines) + "\n")

    @property
    def num_blocks(self) -> int:
        """Blocks as the command line asks for them."""
        return self.args.num_gpu_blocks_override or NUM_BLOCKS

    async def models(self, _request: web.Request) -> web.Response:
        """List the one model."""
        return web.json_response({"data": [{"id": self.name, "max_model_len": MAX_MODEL_LEN}]})

    async def health(self, _request: web.Request) -> web.Response:
        """Answer 200."""
        return web.Response()


def load(step: dict) -> None:
    """Log what a load logs, as slowly as told."""
    say(f"vLLM server version {VERSION}, serving model x")
    if "fail" in step:
        for line in step["fail"]:
            say(line, "ERROR", "EngineCore_DP0")
        sys.exit(int(step.get("status", 1)))
    say("Initializing a V1 LLM engine (v0.32.0) with config: model='x'", who="EngineCore_DP0")
    say("Starting to load model x...", who="EngineCore_DP0")
    for percent in (0, 20, 40):
        sys.stdout.write(f"\rLoading safetensors checkpoint shards: {percent:3d}% Completed | 0/5 [00:00<?, ?it/s]")
        sys.stdout.flush()
        time.sleep(float(step.get("load_s", 0.0)) / 5)
    while step.get("stuck"):
        time.sleep(3600)
    sys.stdout.write("\rLoading safetensors checkpoint shards: 100% Completed | 5/5 [00:01<00:00]\n")
    say("Loading weights took 0.10 seconds", who="EngineCore_DP0")
    say(f"GPU KV cache size: {NUM_BLOCKS * BLOCK_SIZE:,} tokens", who="EngineCore_DP0")
    for percent in (50, 100):
        sys.stdout.write(f"\rCapturing CUDA graphs (decode, FULL): {percent:3d}%|#####| 1/2 [00:00<00:00]")
        sys.stdout.flush()
        time.sleep(float(step.get("load_s", 0.0)) / 5)
    sys.stdout.write("\n")
    say("Graph capturing finished in 1 secs, took 0.01 GiB", who="EngineCore_DP0")
    say("init engine (profile, create kv cache, warmup model) took 0.30 seconds", who="EngineCore_DP0")


def main() -> int:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="vllm")
    parser.add_argument("verb", choices=["serve"])
    parser.add_argument("model")
    for name in ("--served-model-name", "--uds", "--host", "--dtype", "--kv-cache-dtype",
                 "--distributed-executor-backend"):  # fmt: skip
        parser.add_argument(name)
    for name in ("--port", "--max-model-len", "--tensor-parallel-size", "--pipeline-parallel-size", "--max-num-seqs",
                 "--num-gpu-blocks-override", "--max-num-batched-tokens", "--block-size", "--seed"):  # fmt: skip
        parser.add_argument(name, type=int)
    for name in ("--disable-uvicorn-access-log", "--enable-prefix-caching", "--enforce-eager"):
        parser.add_argument(name, action="store_true")
    args = parser.parse_args()
    folder = Path(args.model)
    starts = folder / "starts"
    with starts.open("a") as file:
        file.write(f"{json.dumps({'argv': sys.argv[1:], 'pid': os.getpid(), 'env': dict(os.environ)})}\n")
    number = len(starts.read_text().splitlines())
    plan = folder / "standin.json"
    steps = json.loads(plan.read_text())["starts"] if plan.exists() else [{}]
    step = steps[min(number, len(steps)) - 1]
    # vLLM's engine core is a process of its own, and outlives a SIGKILL of the API server by itself.
    core = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (folder / "core.pid").write_text(str(core.pid))
    load(step)
    server = StandIn(args, step)
    app = web.Application()
    app.router.add_post("/v1/completions", server.answer)
    app.router.add_post("/v1/chat/completions", server.answer)
    app.router.add_get("/v1/models", server.models)
    app.router.add_get("/health", server.health)
    app.router.add_get("/metrics", server.metrics)
    asyncio.run(serve(app, args, step, core))
    return 0


async def serve(app: web.Application, args: argparse.Namespace, step: dict, core: subprocess.Popen) -> None:
    """Listen, log it, and leave on SIGTERM unless told to ignore that."""
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    site = web.UnixSite(runner, args.uds) if args.uds else web.TCPSite(runner, args.host, args.port)
    await site.start()
    say("Application startup complete.")
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGTERM, (lambda: None) if step.get("ignore_term") else over.set
    )
    await over.wait()
    core.terminate()
    await runner.cleanup()


if __name__ == "__main__":
    sys.exit(main())
