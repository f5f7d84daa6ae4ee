"""
An engine or an API without torch or aiohttp that speaks the control link for real and misbehaves as told.

    fake_role.py PLAN _ROLE --control-fd N [--listen-fd M]

PLAN is JSON: {"engine": [step, step ...], "api": [...]}; start number n of a role follows step n, the last one repeats.
A step may have: load_s, exit (status after Hello), fault (an error class to die of), lost_after_s (dies of a lost
device of rank 0 that a reset cures), crash_after_s, hang_after_s (a step
that never ends), out_of_memory_after_s, mute_after_s (no more heartbeats), self_test_fault, drain_s, ignore_shutdown,
worker (it has a process in its group), stuck_at (the fraction of its load beyond which it does not come).
Gates are files that the test makes: load_gate and drain_gate (not over before the file is there), out_of_memory_gate
(runs out of memory once the file is there, and takes it away).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from ascendd import errors
from ascendd.errors import PeerClosed
from ascendd.ipc import messages as msg
from ascendd.ipc.channel import BlockingChannel
from ascendd.ipc.child import ChildArguments, receive_config, run_role
from ascendd.ipc.messages import ControlMessage, Role

BEAT_S = 0.1


class FakeRole:
    """Follows one step of the plan."""

    def __init__(self, role: Role, plan: dict) -> None:
        self._role = role
        self._plan = plan
        self._state = msg.EngineState(ready=False, text="unknown")
        self._draining = False
        self._held = False
        self._config: dict = {}

    def body(self, arguments: ChildArguments, channel: BlockingChannel[ControlMessage]) -> int:
        """Live the life that the plan describes."""
        steps = self._plan.get(self._role.value) or [{}]
        config, run = receive_config(channel, self._role)
        step = steps[min(run, len(steps)) - 1]
        if "exit" in step:
            return int(step["exit"])
        if self._role is Role.API:
            assert arguments.listen_fd is not None
            listener = socket.socket(fileno=arguments.listen_fd)
            threading.Thread(target=self._answer, args=(listener,), daemon=True).start()
        if step.get("worker"):
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        self._load(channel, step)
        if "fault" in step:
            raise getattr(errors, step["fault"])(f"{self._role.value} was told to fail", remedy="Tell it otherwise.")
        num_blocks = config.engine.max_num_blocks or 100
        parallel = {"tp_size": config.parallel.tensor_parallel_size, "devices": config.parallel.devices}
        facts = {"run": run, "num_blocks": num_blocks, "block_size": 16, "max_model_len": 128, **parallel}
        channel.send(msg.Ready(facts))
        return self._serve(channel, step)

    def _load(self, channel: BlockingChannel[ControlMessage], step: dict) -> None:
        load_s, stuck_at = float(step.get("load_s", 0.0)), float(step.get("stuck_at", 1.0))
        gate = Path(step["load_gate"]) if "load_gate" in step else None
        started = time.monotonic()
        while (elapsed := time.monotonic() - started) < load_s or (gate is not None and not gate.exists()):
            channel.send(msg.Heartbeat())
            channel.send(msg.Progress("loading", min(elapsed / (load_s or 600.0), stuck_at)))
            time.sleep(0.05)

    def _serve(self, channel: BlockingChannel[ControlMessage], step: dict) -> int:
        ready_at = time.monotonic()
        peer: socket.socket | None = None
        drained_at: float | None = None
        num_beats = 0
        while True:
            age_s = time.monotonic() - ready_at
            if age_s > step.get("crash_after_s", 1e9):
                os.kill(os.getpid(), signal.SIGSEGV)
            if age_s > step.get("lost_after_s", 1e9):
                raise errors.DeviceLost("device 0 was told to be lost", rank=0, action="device_reset")
            if age_s > step.get("out_of_memory_after_s", 1e9) or _took(step.get("out_of_memory_gate")):
                raise errors.DeviceOutOfMemory("a step of the group found no memory")
            if age_s <= step.get("mute_after_s", 1e9):
                num_beats += 1
                channel.send(msg.Heartbeat(num_beats, max(0.0, age_s - step.get("hang_after_s", 1e9))))
                if self._role is Role.ENGINE:
                    channel.send(msg.Stats([msg.Sample("ascendd_engine_steps_total", float(num_beats))]))
            if drained_at is not None and (time.monotonic() >= drained_at or _exists(step.get("drain_gate"))):
                channel.send(msg.Drained(0))
                drained_at = None
            if (first := channel.recv(BEAT_S)) is not None:
                for message in [first, *channel.drain()]:
                    match message:
                        case msg.AttachPeer():
                            if peer is not None:
                                peer.close()
                            peer = socket.socket(fileno=channel.take_fd())
                            peer.send(self._role.value.encode())
                        case msg.EngineState():
                            self._state = message
                        case msg.RunSelfTest(episode):
                            channel.send(self._self_test(episode, peer, step))
                        case msg.Hold(held):
                            self._held = held
                        case msg.Reconfigure(config_json):
                            self._config = json.loads(config_json)
                        case msg.Drain(deadline_s):
                            self._draining = True
                            drained_at = time.monotonic() + min(
                                deadline_s, step.get("drain_s", 600.0 if "drain_gate" in step else 0.0)
                            )
                        case msg.Shutdown():
                            if not step.get("ignore_shutdown"):
                                return 0

    def _self_test(self, episode: int, peer: socket.socket | None, step: dict) -> msg.SelfTestDone:
        """Pass only where the engine's word came over the data link."""
        assert peer is not None
        peer.settimeout(5.0)
        try:
            heard = peer.recv(100)
        except OSError as error:
            heard = str(error).encode()
        if "self_test_fault" in step or heard != b"engine":
            return msg.SelfTestDone(episode, 0.1, msg.Fault.from_error(errors.SelfTestFailed(f"heard {heard!r}")))
        return msg.SelfTestDone(episode, 0.1)

    def _answer(self, listener: socket.socket) -> None:
        """Answer each connection with one line of JSON: what the supervisor last said of the engine."""
        listener.setblocking(True)
        while True:
            connection, _ = listener.accept()
            with connection:
                state = {"ready": self._state.ready, "text": self._state.text, "retry": self._state.retry_after_s}
                state |= {"held": self._held, "config": self._config, "pressure": self._state.pressure}
                state |= {"degraded": self._state.degraded, "episode": self._state.episode}
                connection.sendall(
                    json.dumps({**state, "pid": os.getpid(), "draining": self._draining}).encode() + b"\n"
                )


def _exists(path: str | None) -> bool:
    return path is not None and Path(path).exists()


def _took(path: str | None) -> bool:
    """Whether the file was there; it is not any more."""
    if not _exists(path):
        return False
    assert path is not None
    Path(path).unlink()
    return True


def main(argv: list[str]) -> int:
    """Run the role named after the plan; an unknown argument is an error, as in the real roles."""
    role = Role(argv[1].lstrip("_"))
    try:
        return run_role(role, argv[2:], FakeRole(role, json.loads(argv[0])).body)
    except PeerClosed:
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
