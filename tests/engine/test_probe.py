"""The token behind /readyz: computed beside a full engine, and nobody notices."""

from __future__ import annotations

import pytest
import torch

from ascendd.ipc.messages import AddSequence, SamplingParams

PROMPTS = [torch.randint(0, 320, (9,), generator=torch.Generator().manual_seed(seed)).tolist() for seed in range(6)]


@pytest.mark.parametrize("family", ["qwen2", "phi3", "deepseek_v2"])
def test_a_probe_between_all_steps_changes_no_token(tiny_model, make_core, generate, family) -> None:
    """With every row and every block in use a probe still computes, holds nothing, and the tokens are the same."""
    folder = tiny_model(family)[0]
    options = {"max_num_seqs": 2, "max_num_blocks": 4, "block_size": 16, "max_model_len": 64}
    expected = generate(make_core(folder, **options), PROMPTS, 12)
    core = make_core(folder, **options)
    plain_step, num_probes = core.step, 0

    def step():
        nonlocal num_probes
        core.probe()
        num_probes += 1
        return plain_step()

    core.step = step

    assert generate(core, PROMPTS, 12) == expected
    assert num_probes > 30
    core.check_integrity()


def test_a_probe_goes_through_the_layers(tiny_model, make_core) -> None:
    """A model that cannot compute fails the probe: no answer comes from anywhere else."""
    core = make_core(tiny_model("qwen2")[0], max_num_blocks=4)
    core.probe()

    def broken(*_args):
        raise RuntimeError("a layer is broken")

    core.executor.runner._model.forward = broken

    with pytest.raises(RuntimeError, match="a layer is broken"):
        core.probe()
    assert core.add(AddSequence(1, [1, 2], SamplingParams(max_tokens=1))) is None
