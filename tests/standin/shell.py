"""A Python process on a stand-in machine that runs what a test sends it, one piece after the other."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from standin.machine import Machine

_LOOP = r"""
import json, sys, traceback
names = {}
out = open(int(sys.argv[1]), "w")
for line in sys.stdin:
    code, expression = json.loads(line)
    try:
        exec(code, names)
        answer = {"value": eval(expression, names)}
    except BaseException as error:
        answer = {"error": type(error).__name__, "text": str(error), "trace": traceback.format_exc()}
    out.write(json.dumps(answer) + "\n")
    out.flush()
"""


class ShellError(Exception):
    """What the process raised; `kind` is the name of its class."""

    def __init__(self, kind: str, text: str, trace: str) -> None:
        super().__init__(f"{kind}: {text}\n{trace}")
        self.kind, self.text = kind, text


class Shell:
    """Use as a context manager; the process is killed at the end. `more` are further environment variables."""

    def __init__(self, machine: Machine, stderr: Path, **more: str) -> None:
        answers, child_end = os.pipe()
        self._answers = os.fdopen(answers, encoding="utf-8")
        self.stderr = stderr
        with stderr.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _LOOP, str(child_end)], stdin=subprocess.PIPE, stdout=log, stderr=log,
                pass_fds=[child_end], env=machine.environment(OMP_NUM_THREADS="1", **more), text=True,
            )  # fmt: skip
        os.close(child_end)

    def send(self, code: str, expression: str = "None") -> None:
        """Start running `code` and then evaluating `expression`; `receive` waits for it."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([code, expression]) + "\n")
        self.process.stdin.flush()

    def receive(self, timeout_s: float = 90.0) -> object:
        """Return the value of what was sent. Raises ShellError, TimeoutError, EOFError when the process is gone."""
        end = time.monotonic() + timeout_s
        while not select.select([self._answers], [], [], max(0.0, end - time.monotonic()))[0]:
            if time.monotonic() >= end:
                raise TimeoutError(f"no answer in {timeout_s} s; {self.stderr.read_text(errors='replace')[-2000:]}")
        line = self._answers.readline()
        if not line:
            code = self.process.wait(10)
            raise EOFError(f"the process ended with {code}; {self.stderr.read_text(errors='replace')[-4000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise ShellError(answer["error"], answer["text"], answer["trace"])
        return answer["value"]

    def run(self, code: str, expression: str = "None", timeout_s: float = 90.0) -> object:
        """Send and receive."""
        self.send(code, expression)
        return self.receive(timeout_s)

    def __enter__(self) -> Shell:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._answers.close()
