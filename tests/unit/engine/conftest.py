"""A scripted runner and sequence factory, so that scheduling is tested without torch and in milliseconds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ascendd.config.plan import MemoryPlan
from ascendd.config.resolve import EngineConfig
from ascendd.engine.sched.output import ModelRunnerOutput, SchedulerOutput
from ascendd.engine.sequence import Sequence
from ascendd.ipc.messages import SamplingParams


class ScriptedRunner:
    """
    Draws a token that is a checksum of everything before it, and checks that every token was computed exactly once.

    `content` models the KV tensors: slot -> (token, position, everything before). A wrong block table, a stale prefix
    block or a lost token changes the checksum.
    """

    vocab_size = 1000

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.content: dict[int, tuple[int, int]] = {}
        self.num_tokens = 0

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        token_ids = []
        for chunk in output.chunks:
            sequence = chunk.sequence
            for position in range(chunk.start, chunk.start + chunk.num_tokens):
                block_id = sequence.block_ids[position // self.block_size]
                assert block_id != 0, "a token was written to the null block"
                self.content[block_id * self.block_size + position % self.block_size] = (
                    sequence.token_ids[position],
                    position,
                )
            self.num_tokens += chunk.num_tokens
            if chunk.samples:
                token_ids.append(self._next(sequence))
        return ModelRunnerOutput(token_ids)

    def _next(self, sequence: Sequence) -> int:
        checksum = 7
        for position in range(sequence.num_tokens):
            slot = sequence.block_ids[position // self.block_size] * self.block_size + position % self.block_size
            assert self.content[slot] == (sequence.token_ids[position], position), f"slot {slot} holds another token"
            checksum = (checksum * 31 + sequence.token_ids[position] + position) % 997
        return checksum % self.vocab_size

    @classmethod
    def expected(cls, prompt: list[int], num_tokens: int) -> list[int]:
        """Return what an undisturbed run generates."""
        tokens = list(prompt)
        for _ in range(num_tokens):
            checksum = 7
            for position, token in enumerate(tokens):
                checksum = (checksum * 31 + token + position) % 997
            tokens.append(checksum % cls.vocab_size)
        return tokens[len(prompt) :]


@pytest.fixture
def scripted_runner() -> type[ScriptedRunner]:
    return ScriptedRunner


@pytest.fixture
def make_sequence() -> Callable[..., Sequence]:
    def make(seq_id: int, num_prompt: int = 4, max_tokens: int = 4, **kwargs: object) -> Sequence:
        prompt = kwargs.pop("prompt", None) or [(seq_id * 17 + index) % 900 for index in range(num_prompt)]
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        return Sequence(seq_id=seq_id, token_ids=list(prompt), params=params, seed=0, **kwargs)  # type: ignore[call-overload]

    return make


@pytest.fixture
def make_engine_config() -> Callable[..., EngineConfig]:
    def make(**kwargs: object) -> EngineConfig:
        values: dict[str, object] = {
            "model_path": "/models/tiny", "model_name": "tiny", "device": "cpu", "dtype": "float32", "kv_cache_dtype": "float32",
            "block_size": 16, "num_blocks": 40, "max_model_len": 512, "max_num_seqs": 8, "max_num_batched_tokens": 64,
            "enable_prefix_caching": True, "enforce_eager": False, "tensor_parallel_size": 1, "num_threads": 1, "seed": None,
            "plan": MemoryPlan(weights_bytes=1, reserve_bytes=0, budget_bytes=1, bytes_per_token=1, bytes_per_block=16, block_size=16, num_blocks=40, origin="test"),
            "origins": {},
        }  # fmt: skip
        return EngineConfig(**{**values, **kwargs})  # type: ignore[arg-type]

    return make
