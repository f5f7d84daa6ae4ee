"""
vLLM's OpenAI server with an engine that computes nothing, in its own process: one token a step for every request.

    VLLM_PYTHON tests/bench/front_end_vllm.py MODEL PORT STEP_MS        started by front_end.py

What its own engine process would cost the front end, messages to and from it, is not in the figure.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from vllm.entrypoints.launchers.api_server.entry import run_server
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason, core_client

FIRST_TOKEN_ID = 1000


class NullClient:
    """Stands for vLLM's client of its engine process."""

    engine_ranks_managed = (0,)

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._made: dict[str, int] = {}
        self._most: dict[str, int] = {}
        self._work = asyncio.Event()
        self._due = time.monotonic()

        class _Resources:
            engine_dead = False

        self.resources = _Resources()

    async def get_supported_tasks_async(self) -> tuple[str, ...]:
        """It generates."""
        return ("generate",)

    async def add_request_async(self, request: Any) -> None:
        """Take a request."""
        self._made[request.request_id] = 0
        self._most[request.request_id] = request.sampling_params.max_tokens
        self._work.set()

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        """Forget requests."""
        for request_id in request_ids:
            self._made.pop(request_id, None)

    async def get_output_async(self) -> EngineCoreOutputs:
        """Return the next step."""
        while not self._made:
            self._work.clear()
            await self._work.wait()
        await asyncio.sleep(max(0.0, self._due - time.monotonic()))
        self._due = max(self._due + self._step_s, time.monotonic())
        outputs = []
        for request_id in list(self._made):
            self._made[request_id] += 1
            number = self._made[request_id]
            is_last = number >= self._most[request_id]
            reason = FinishReason.LENGTH if is_last else None
            outputs.append(EngineCoreOutput(request_id, [FIRST_TOKEN_ID + number], finish_reason=reason))
            if is_last:
                self._made.pop(request_id)
        return EngineCoreOutputs(outputs=outputs)

    def __getattr__(self, name: str) -> Any:
        """What the front end asks beside generation is answered with nothing."""
        if name.endswith("_async"):

            async def nothing(*_args: Any, **_kw: Any) -> None:
                return None

            return nothing
        return lambda *_args, **_kw: None


def main(model: str, port: int, step_ms: float) -> None:
    """Serve until killed."""

    def make(*_args: Any, **_kw: Any) -> NullClient:
        return NullClient(step_ms / 1000)

    core_client.EngineCoreClient.make_async_mp_client = staticmethod(make)
    parser = make_arg_parser(FlexibleArgumentParser())
    args = parser.parse_args([
        "--model", model, "--served-model-name", "bench", "--port", str(port), "--host", "127.0.0.1",
        "--disable-log-stats", "--uvicorn-log-level", "warning", "--disable-uvicorn-access-log",
    ])  # fmt: skip
    asyncio.run(run_server(args))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
