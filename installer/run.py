"""
Run: plan, apply, verify and uninstall over the steps of one host.

    PENDING -> ACTING -> ACTED -> DONE          apply, each arrow saved before the next thing happens
    DONE, ACTED, ACTING -> UNDOING -> UNDONE    uninstall, in the reverse order

A killed run is gone on with by `resume`: a step that was ACTING is done again from its first action, so actions can be
repeated; a step that was ACTED is only proven.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Dict, List, Sequence

from ascendd.errors import AscenddError, HostError, PreflightFailed

from .graph import in_order
from .host import LOG_FOLDER, Host, write_atomic
from .settings import Settings
from .state import InstallState
from .step import Detection, Found, Step, StepStatus
from .steps.reboot import RebootOutstanding


class Run:
    """One run over ordered steps; `problems` are those of media and bundle, which refuse everything."""

    def __init__(
        self, host: Host, state: InstallState, steps: Sequence[Step], settings: Settings, problems: Sequence[str]
    ) -> None:
        self._host = host
        self._state = state
        self._steps = in_order(steps)
        self._settings = settings
        self._problems = list(problems)
        self._report: List[Dict[str, Any]] = []
        self._started = time.monotonic()

    def plan(self) -> bool:
        """Print what `apply` would do; return whether that is anything. Raises PreflightFailed to refuse it."""
        found = self._detect()
        work = [step for step in self._steps if found[step.id].found is not Found.PRESENT]
        for step in self._steps:
            detection = found[step.id]
            mark = "keep" if detection.found is Found.PRESENT else "do"
            self._host.say(f"{mark:>4}  {step.title}: {detection.sentence}")
            if detection.found is not Found.PRESENT:
                for action in step.act(self._host, detection.found):
                    self._host.say(f"      $ {action.show(self._host)}")
        self._refuse(self._checks(work))
        if work:
            self._host.say(
                f"{len(work)} step(s), about {_duration(sum(step.estimate_s for step in work))}; nothing was changed"
            )
        else:
            self._host.say("nothing to do")
        return bool(work)

    def begin(self) -> None:
        """Check everything, then remember what was found. Raises PreflightFailed before anything is touched."""
        found = self._detect()
        work = [step for step in self._steps if found[step.id].found is not Found.PRESENT]
        self._refuse(self._checks(work))
        self._state.begin("apply", self._settings.to_json(), found)

    def apply(self) -> None:
        """Do what is not done. Raises HostError after a failure, PreflightFailed before one, and RebootOutstanding."""
        self._refuse(self._problems)
        try:
            for number, step in enumerate(self._steps, 1):
                if self._state.status(step.id) is not StepStatus.DONE:
                    self._do(step, number)
        except BaseException as error:
            self._write_report(_outcome(error))
            raise
        self._state.end()
        self._write_report("installed")

    def verify(self) -> List[str]:
        """Prove every step; return what is not as it should be."""
        failures = []
        for step in self._steps:
            try:
                self._host.say(f"  ok  {step.title}: {step.prove(self._host)}")
            except AscenddError as error:
                failures.append(f"{step.title}: {error.message}")
                self._host.say(f"FAIL  {step.title}: {error.message}\n      {error.remedy}")
        return failures

    def show_uninstall(self) -> None:
        """Print what `uninstall` would do."""
        for step in self._to_undo():
            self._host.say(f"undo  {step.title}")
            for action in step.undo(self._host, self._state):
                self._host.say(f"      $ {action.show(self._host)}")

    def uninstall(self) -> None:
        """Take back what was made, the last step first; the state is removed at the end."""
        self._state.verb = "uninstall"
        self._state.save()
        steps = self._to_undo()
        try:
            for number, step in enumerate(steps, 1):
                self._host.say(f"[{number}/{len(steps)}] {step.title}: taking back")
                actions = step.undo(self._host, self._state)
                self._state.set_status(step.id, StepStatus.UNDOING)
                for action in actions:
                    self._show(action.show(self._host))
                    action.perform(self._host, self._state, step.id)
                self._state.set_status(step.id, StepStatus.UNDONE)
                self._note(step, "undone", "")
        except BaseException as error:
            self._write_report(_outcome(error))
            raise
        if self._state.reboot_after == self._host.boot_id and self._state.reboot_after:
            self._host.say("driver or firmware were taken back: reboot the host")
        self._write_report("uninstalled")
        self._state.forget()

    def _do(self, step: Step, number: int) -> None:
        begun = time.monotonic()
        status, found = self._state.status(step.id), self._state.found(step.id)
        left = sum(s.estimate_s for s in self._steps[number - 1 :] if self._is_open(s))
        head = f"[{number}/{len(self._steps)}] {step.title}"
        if found is not Found.PRESENT and status in (StepStatus.PENDING, StepStatus.ACTING):
            # Asked again, since minutes or a reboot lie between: a process may hold a chip now.
            self._refuse(step.check(self._host, self._state))
            self._host.say(f"{head}: about {_duration(left)} left")
            actions = step.act(self._host, found)
            self._state.set_status(step.id, StepStatus.ACTING)
            for action in actions:
                self._show(action.show(self._host))
                action.perform(self._host, self._state, step.id)
            self._state.set_status(step.id, StepStatus.ACTED)
        sentence = step.detect(self._host).sentence if found is Found.PRESENT else step.prove(self._host)
        self._host.say(f"{head}: {sentence}")
        self._state.set_status(step.id, StepStatus.DONE)
        self._note(step, "kept" if found is Found.PRESENT else "done", sentence, time.monotonic() - begun)

    def _is_open(self, step: Step) -> bool:
        return self._state.status(step.id) is not StepStatus.DONE and self._state.found(step.id) is not Found.PRESENT

    def _to_undo(self) -> List[Step]:
        known = [step for step in self._steps if step.id in self._state.steps]
        return [step for step in reversed(known) if self._state.status(step.id) is not StepStatus.UNDONE]

    def _detect(self) -> Dict[str, Detection]:
        return {step.id: step.detect(self._host) for step in self._steps}

    def _checks(self, work: Sequence[Step]) -> List[str]:
        # The system is asked even when it is only a second apply; it has nothing to do by nature.
        asked = [step for step in self._steps if step in work or (work and step.id == "system")]
        return [*self._problems, *(problem for step in asked for problem in step.check(self._host, self._state))]

    def _refuse(self, problems: Sequence[str]) -> None:
        problems = list(dict.fromkeys(problems))
        if problems:
            lines = "".join(f"\n  - {problem}" for problem in problems)
            raise PreflightFailed(
                f"not begun, for {len(problems)} reason(s):{lines}", remedy="Remove each, then run it again."
            )

    def _show(self, command: str) -> None:
        self._host.say(f"      $ {command}")

    def _note(self, step: Step, outcome: str, sentence: str, duration_s: float = 0.0) -> None:
        entry = {"step": step.id, "title": step.title, "outcome": outcome, "said": sentence}
        self._report.append({**entry, "duration_s": round(duration_s, 1)})
        self._host.log(f"{step.id}: {outcome} {sentence}".rstrip())

    def _write_report(self, outcome: str) -> None:
        report = {
            "outcome": outcome,
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "duration_s": round(time.monotonic() - self._started, 1),
            "settings": self._settings.to_json(),
            "steps": self._report,
        }
        folder = Path(self._host.real(LOG_FOLDER))
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(str(folder / "report.json"), json.dumps(report, indent=2, ensure_ascii=False).encode())


def _outcome(error: BaseException) -> str:
    if isinstance(error, RebootOutstanding):
        return "reboot outstanding"
    if isinstance(error, (HostError, PreflightFailed)):
        return f"failed: {error.message}"
    return f"stopped: {type(error).__name__}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
