"""The whole daemon over two stand-in NPUs and the real `hccl` backend: the CPU's text, and a rank's fault named."""

from __future__ import annotations

import urllib.error

import pytest

SYNCHRONISE = "aclrtSynchronizeStreamWithTimeout"
PROMPT = "hello there"


def test_two_tensor_ranks_say_the_cpus_text_and_a_fault_names_its_rank(group, qwen2_folder, text_on_cpu) -> None:
    """Then 507035 on device 1 ends both with ASD-D01 of rank 1; the other's failed collective is an echo."""
    machine, daemon = group
    expected = text_on_cpu(machine, qwen2_folder, PROMPT)
    daemon.wait_ready()
    text = daemon.text(PROMPT)
    machine.fault(SYNCHRONISE, 507035, call=3, device=1)
    with pytest.raises(urllib.error.HTTPError):
        daemon.text("again")
    daemon.wait(lambda: daemon.events("supervisor.child_ended"), "the end of the engine")
    failed = daemon.events("engine.group_failed")[0]

    assert text == expected
    assert (failed["failed_rank"], failed["code"]) == (1, "ASD-D01")
    assert "507035" in failed["reason"]
    assert "ASD-D01" in daemon.events("supervisor.child_ended")[0]["reason"]
