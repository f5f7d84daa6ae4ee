"""How far half precision over two tensor ranks may be from one rank on a CPU in float32: the stated tolerance."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROMPT = "hello there"
# Of the natural logarithm of a token's probability, over the tokens that both draw. docs/HARDWARE.md states it.
TOLERANCE = {"float16": 0.01, "bfloat16": 0.05}


def tokens(daemon: Any) -> list[tuple[str, float]]:
    """Return eight greedy tokens with their log probabilities."""
    body = {"model": "m", "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "logprobs": 1}
    url = f"{daemon._url()}/v1/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        found = json.load(response)["choices"][0]["logprobs"]
    return list(zip(found["tokens"], found["token_logprobs"], strict=True))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_log_probabilities_of_two_ranks_stay_within_the_tolerance(
    make_machine, serve, qwen2_folder, pack, dtype
) -> None:
    """All-reduces add up rounded halves; the first token, which both draw, and those that follow while they agree."""
    machine = make_machine(num_devices=2)
    cpu = serve(machine, qwen2_folder, "cpu")
    cpu.wait_ready()
    expected = tokens(cpu)
    cpu.stop()
    folder = pack(qwen2_folder, 2, dtype)
    npu = serve(machine, folder, "npu", parallel={"tensor_parallel_size": 2}, model={"dtype": dtype})
    npu.wait_ready()
    found = tokens(npu)
    pairs = []
    for ours, theirs in zip(found, expected, strict=True):
        if ours[0] != theirs[0]:
            break
        pairs.append(abs(ours[1] - theirs[1]))
    print(dtype, len(pairs), max(pairs))

    assert pairs, "another first token"
    assert max(pairs) < TOLERANCE[dtype]
