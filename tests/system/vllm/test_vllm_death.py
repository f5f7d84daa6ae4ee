"""What happens when vLLM, its keeper, the API before it or the daemon dies or hangs."""

from __future__ import annotations

import json
import os
import signal
import threading

import psutil
import pytest
from kept_daemon import TIMEOUT_S, eventually, gone

pytestmark = pytest.mark.system  # the whole table takes minutes: `make test` has its shortest row and the life of it


def keeper(daemon) -> psutil.Process:
    """Return the keeper's process."""
    return next(process for process in daemon.family() if "_vllm" in process.cmdline())


def core_pid(daemon) -> int:
    """Return the pid of vLLM's engine core."""
    return int((daemon.model / "core.pid").read_text())


def serves_again(daemon, num_starts: int) -> None:
    """Wait until vLLM was started `num_starts` times and answers."""
    eventually(lambda: len(daemon.starts()) >= num_starts, detail=lambda: daemon.log)
    eventually(lambda: daemon.get("/readyz")[0] == 200, detail=lambda: daemon.log)
    assert daemon.post({"prompt": "again", "max_tokens": 2})[0] == 200


@pytest.mark.slow
def test_a_crash_ends_streams_with_an_error_and_is_recovered_from(kept):
    """Who had tokens gets an error event, who had none gets the answer of the next vLLM; the core died with it."""
    daemon = kept([{"token_s": 0.02}])
    daemon.wait_ready()
    core = core_pid(daemon)
    with daemon.stream({"prompt": "hi", "max_tokens": 400}) as stream:
        stream.read(20)
        status, answer = daemon.post({"prompt": "CRASH", "max_tokens": 1})  # given to the next, which dies of it, too
        rest = stream.read()

    assert b'"error"' in rest
    assert (status, "retry" in answer["error"]["message"]) == (503, True)
    assert gone(core)
    serves_again(daemon, 3)
    assert "SIGSEGV" in daemon.log
    eventually(lambda: daemon.figure('ascendd_child_failures_total{failure="crash",role="engine"}') == 2)


def test_a_request_without_a_token_gets_the_next_engine_s_answer(kept):
    """A vLLM that dies for another's request costs who waits a moment, not the answer."""
    daemon = kept([{"mute": "wait"}, {}])
    daemon.wait_ready()
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(daemon.post({"prompt": "wait", "max_tokens": 4})))
    waiting.start()
    eventually((daemon.model / "muted").exists, detail=lambda: daemon.log)

    os.kill(daemon.starts()[0]["pid"], signal.SIGKILL)
    waiting.join(TIMEOUT_S)

    assert [status for status, _ in answers] == [200], daemon.log
    assert len(daemon.starts()) == 2


@pytest.mark.slow
def test_the_log_says_why_and_the_cache_shrinks(kept):
    """Out of device memory in vLLM's log is that class of failure: the next one gets 0.9 of the blocks."""
    daemon = kept()
    daemon.wait_ready()
    daemon.post({"prompt": "FATAL", "max_tokens": 1})
    eventually(lambda: len(daemon.starts()) >= 2, detail=lambda: daemon.log)
    argv = daemon.starts()[1]["argv"]

    assert argv[argv.index("--num-gpu-blocks-override") + 1] == "115"
    assert "NPU out of memory. Tried to allocate 2.00 GiB" in daemon.log
    eventually(lambda: (daemon.figure("ascendd_memory_restarts_total") or 0) >= 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "status", "told"),
    [
        (
            ["ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"],
            66,
            "ASD-M0",
        ),
        (["ValueError: Model architectures ['X'] are not supported for now."], 66, "ASD-M0"),
        (["vllm serve: error: unrecognized arguments: --nonsense"], 78, "ASD-C04"),
        (["ModuleNotFoundError: No module named 'torchvision'"], 69, "ASD-P01"),
    ],
)
def test_what_would_fail_again_is_not_tried_again(kept, lines, status, told):
    """A cause that is permanent ends the instance at the first start with its own exit status and its code."""
    daemon = kept([{"fail": [*lines, "RuntimeError: Engine core initialization failed. See root cause above."]}])

    assert daemon.process.wait(TIMEOUT_S) == status, daemon.log
    assert len(daemon.starts()) == 1
    eventually(lambda: any(state.startswith("STATUS=failed: ") and told in state for state in daemon.states))


@pytest.mark.slow
def test_without_its_environment_nothing_is_started(kept, tmp_path):
    """A venv without bin/vllm is told before a process is made, with what to write."""
    daemon = kept([{"fail": ["vllm serve: error: unrecognized arguments: --nonsense"]}])
    assert daemon.process.wait(TIMEOUT_S) == 78
    (tmp_path / "venv" / "bin" / "vllm").unlink()
    from ascendd.config.load import load_file
    from ascendd.errors import ConfigInvalid
    from ascendd.supervisor.backend import backend_of

    config = load_file(tmp_path / "instance.yaml")
    with pytest.raises(ConfigInvalid, match="bin/vllm is not there"):
        backend_of(config).check(config)


@pytest.mark.slow
def test_a_killed_keeper_takes_vllm_and_its_core_along(kept):
    """Kill -9 of the keeper leaves no vLLM behind, and the next one starts once that is proven."""
    daemon = kept()
    daemon.wait_ready()
    vllm, core = daemon.starts()[0]["pid"], core_pid(daemon)

    keeper(daemon).kill()

    serves_again(daemon, 2)
    assert gone(vllm)
    assert gone(core)


@pytest.mark.slow
def test_a_killed_daemon_leaves_nothing(kept):
    """Kill -9 of the supervisor ends keeper, vLLM and its core without systemd's help."""
    daemon = kept()
    daemon.wait_ready()
    pids = [process.pid for process in daemon.family()]
    assert core_pid(daemon) in pids

    daemon.process.kill()

    eventually(lambda: all(gone(pid) for pid in pids))


@pytest.mark.slow
def test_the_api_dies_alone(kept):
    """A new API serves over the same vLLM, which keeps its weights."""
    daemon = kept()
    daemon.wait_ready()
    api = next(process for process in daemon.family() if "_api" in process.cmdline())

    api.kill()

    eventually(lambda: "api" in daemon.log and daemon.get("/readyz")[0] == 200 and gone(api.pid))
    assert daemon.post({"prompt": "again", "max_tokens": 2})[0] == 200
    assert len(daemon.starts()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("word", ["HANG", "DEAF"])
def test_a_hang_is_found_by_figures_or_by_silence(kept, word):
    """No token while work waits, or no answer at all, is a hang: stacks are asked for, then it is restarted."""
    daemon = kept(extra="health: {step_deadline_s: 3}\nadmission: {restart_wait_s: 0}")
    daemon.wait_ready()
    stuck = threading.Thread(target=daemon.post, args=({"prompt": word, "max_tokens": 1},))
    stuck.start()

    eventually(lambda: "supervisor.child_hung" in daemon.log, detail=lambda: daemon.log)
    serves_again(daemon, 2)
    stuck.join(TIMEOUT_S)
    assert "engine.vllm_stacks" in daemon.log
    assert "Fatal Python error: Aborted" in daemon.log


@pytest.mark.slow
def test_an_idle_vllm_that_hangs_is_found_before_a_client_finds_it(kept):
    """Nobody asks for anything; the keeper's own token does not come, and that is a hang."""
    daemon = kept(extra="health: {step_deadline_s: 3}\nadmission: {restart_wait_s: 0}")
    daemon.wait_ready()

    os.kill(daemon.starts()[0]["pid"], signal.SIGSTOP)

    eventually(lambda: "supervisor.child_hung" in daemon.log, detail=lambda: daemon.log)
    serves_again(daemon, 2)


@pytest.mark.slow
def test_a_load_that_stands_still_is_a_hang(kept):
    """A load that says nothing new within health.load_deadline_s is ended and tried again."""
    daemon = kept([{"stuck": True}, {}], extra="health: {load_deadline_s: 2}")
    daemon.wait_ready()

    assert "no sign of progress" in daemon.log
    assert len(daemon.starts()) == 2


@pytest.mark.slow
def test_a_vllm_that_ignores_the_order_to_leave_is_killed(kept):
    """The instance ends with 0 within its grace all the same, and nobody is left."""
    daemon = kept([{"ignore_term": True}])
    daemon.wait_ready()
    vllm, core = daemon.starts()[0]["pid"], core_pid(daemon)

    assert daemon.end() == 0
    assert gone(vllm)
    assert gone(core)


@pytest.mark.slow
def test_an_end_from_outside_is_told_and_the_bundle_has_the_lines(kept, tmp_path):
    """A SIGKILL of vLLM is named; the incident's bundle holds what vLLM logged."""
    daemon = kept(extra=f"log: {{file: {tmp_path}/kept.log}}\nadmission: {{restart_wait_s: 0}}")
    daemon.wait_ready()
    daemon.post({"prompt": "KILLED", "max_tokens": 1})

    serves_again(daemon, 2)
    (bundle,) = (json.loads(path.read_text()) for path in (daemon.folder / "state").rglob("*.json"))
    assert "SIGKILL" in json.dumps(bundle["incident"])
    assert any("vLLM server version" in line for lines in bundle["lines"].values() for line in lines)
