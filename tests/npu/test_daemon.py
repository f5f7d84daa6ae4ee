"""The whole daemon with `device: npu`: it answers as on a CPU, and a device that dies or hangs is found and named."""

from __future__ import annotations

import urllib.error

import pytest

# Two daemons start in most of them: minutes, where other tests run beside it.
pytestmark = pytest.mark.timeout(600)

SYNCHRONISE = "aclrtSynchronizeStreamWithTimeout"


def test_a_device_that_dies_is_named_and_waited_for(make_machine, serve, qwen2_folder) -> None:
    """The text is the CPU's; the device's death ends the engine with ASD-D04; once it is back the text comes again."""
    machine = make_machine()
    npu, cpu = serve(machine, qwen2_folder, "npu"), serve(machine, qwen2_folder, "cpu")
    cpu.wait_ready()
    expected = cpu.text("hello there")
    cpu.stop()
    npu.wait_ready()
    text = npu.text("hello there")
    machine.kill_device(0)
    with pytest.raises(urllib.error.HTTPError):
        npu.text("again")
    npu.wait(lambda: npu.events("supervisor.child_ended"), "the end of the engine")
    ended = npu.events("supervisor.child_ended")[0]
    machine.revive_device(0)
    npu.wait_another_engine()

    assert text == expected
    assert "ASD-D04" in ended["reason"]
    assert "507010" in ended["reason"]
    assert npu.text("hello there") == expected


@pytest.mark.slow
def test_a_synchronisation_that_never_returns_is_a_hang(make_machine, serve, qwen2_folder) -> None:
    """The step's deadline passes, the engine is killed as hung, and the next one serves."""
    machine = make_machine()
    daemon = serve(machine, qwen2_folder, "npu", health={"step_deadline_s": 3.0})
    daemon.wait_ready()
    expected = daemon.text("hello there")
    rule = machine.hang(SYNCHRONISE)
    with pytest.raises((urllib.error.HTTPError, OSError)):
        daemon.text("again")
    daemon.wait(lambda: daemon.events("supervisor.child_ended"), "the end of the engine")
    rule.times = 0

    assert daemon.events("supervisor.child_ended")[0]["cause"] == "hung"
    daemon.wait_another_engine()
    assert daemon.text("hello there") == expected


@pytest.mark.slow
@pytest.mark.demo
def test_the_demo_model_is_served_with_the_same_text(make_machine, serve, demo_model) -> None:
    """Over HTTP, in float32, beside a daemon on the CPU."""
    machine = make_machine(hbm_bytes=4 << 30)
    npu, cpu = (serve(machine, demo_model, device) for device in ("npu", "cpu"))
    npu.wait_ready()
    cpu.wait_ready()

    assert npu.text("The capital of France is") == cpu.text("The capital of France is")
