"""Out of memory in the middle of a real forward pass: the same tokens as without, and nothing of the step stays."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

PROMPTS = [
    torch.randint(0, 320, (size,), generator=torch.Generator().manual_seed(size)).tolist() for size in (3, 17, 40, 70)
]
SAMPLED = {"temperature": 0.9, "top_p": 0.9, "seed": 11}


class Allocator:
    """Stands before a device's kernels and has no memory in layer 1 of the forward passes that `fails_at` names."""

    def __init__(self, core, fails_at) -> None:
        self._model = core.executor.runner._model
        self._forward = self._model.forward
        self._fails_at = fails_at
        self.num_calls = 0
        self.activation: weakref.ref[torch.Tensor] | None = None
        self._model.forward = self.forward

    def forward(self, x, residual, context):
        self.num_calls += 1
        if self.num_calls in self._fails_at:
            activation, _ = self._forward(x, residual, context)
            self.activation = weakref.ref(activation)
            raise MemoryError("Tried to allocate 24.00 MiB")
        return self._forward(x, residual, context)


@pytest.mark.parametrize(("family", "params"), [("qwen2", {}), ("phi3", SAMPLED)], ids=["greedy", "sampled"])
def test_out_of_memory_at_every_step_gives_the_same_tokens(tiny_model, make_core, generate, family, params) -> None:
    """For every k the tokens of a run that fails at step k equal those of the run that never does."""
    folder = tiny_model(family)[0]
    options = {"max_num_blocks": 64, "max_num_seqs": 4, "max_num_batched_tokens": 32}
    core = make_core(folder, **options)
    plain = Allocator(core, ())
    expected = generate(core, PROMPTS, 8, **params)
    assert plain.num_calls > 8

    for step in range(1, plain.num_calls + 1):
        core = make_core(folder, **options)
        Allocator(core, {step})
        assert (step, generate(core, PROMPTS, 8, **params)) == (step, expected)
    print(f"{plain.num_calls} runs of {family}, each with one step out of memory: the same {expected[0][:4]}...")


def test_the_tensors_of_the_failed_step_are_freed_before_the_next_try(tiny_model, make_core, generate) -> None:
    """Without a garbage collection, so that the second try has the memory of the first."""
    core = make_core(tiny_model("qwen2")[0], max_num_blocks=64)
    allocator = Allocator(core, {2})
    seen = []
    release = core.executor.runner.release_memory
    core.executor.runner.release_memory = lambda: (seen.append(allocator.activation()), release())
    gc.disable()
    try:
        generate(core, PROMPTS, 4)
    finally:
        gc.enable()

    assert seen == [None]
