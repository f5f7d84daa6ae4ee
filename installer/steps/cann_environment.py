"""The environment file of the units: what CANN's set_env.sh exports, since a service reads no shell profile."""

from __future__ import annotations

from typing import Sequence, Tuple

from ascendd.errors import HostError
from ascendd.host.service_environment import parse_environment_file

from ..action import Action, CaptureEnvironment, RestoreFiles
from ..host import Host
from ..settings import Settings
from ..state import InstallState
from ..step import Detection, Found, Step

PATH = "/etc/ascendd/cann.env"


class CannEnvironment(Step):
    """/etc/ascendd/cann.env; written again after every change of the toolkit."""

    id = "cann-environment"
    title = "environment of CANN"
    requires: Tuple[str, ...] = ("ops", "units")

    def __init__(self, settings: Settings, before: Sequence[Step]) -> None:
        self._settings, self._before = settings, before
        if any(step.id == "nnal" for step in before):
            self.requires = ("ops", "nnal", "units")

    def detect(self, host: Host) -> Detection:
        """Look at the file, and at whether the toolkit is about to change."""
        if not host.files.exists(PATH):
            return Detection(Found.ABSENT, None, f"{PATH} is not there")
        changing = [step.title for step in self._before if step.detect(host).found is not Found.PRESENT]
        if changing:
            return Detection(Found.OLDER, None, f"{PATH} is written again after {' and '.join(changing)}")
        return Detection(Found.PRESENT, None, f"{PATH} is there")

    def act(self, host: Host, found: Found) -> Sequence[Action]:
        """Source the scripts in an empty environment and keep what they set."""
        return (CaptureEnvironment(PATH, self._scripts(host)),)

    def prove(self, host: Host) -> str:
        """See the one variable that everything else hangs on."""
        pairs = parse_environment_file(host.files.read_optional(PATH) or "")
        if not pairs.get("ASCEND_HOME_PATH") and not pairs.get("ASCEND_TOOLKIT_HOME"):
            raise HostError(f"{PATH} names neither ASCEND_HOME_PATH nor ASCEND_TOOLKIT_HOME, so set_env.sh is broken")
        return f"{PATH} holds {len(pairs)} variables"

    def undo(self, host: Host, state: InstallState) -> Sequence[Action]:
        """Put back what was there."""
        return (RestoreFiles(),)

    def _scripts(self, host: Host) -> Tuple[str, ...]:
        root = self._settings.install_path
        toolkit = (f"{root}/cann/set_env.sh", f"{root}/ascend-toolkit/set_env.sh")
        return (*toolkit, f"{root}/nnal/atb/set_env.sh")
