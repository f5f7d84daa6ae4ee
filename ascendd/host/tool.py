"""Tools of the host: found on its own PATH and run there. A fake host has only the tools that lie in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Mapping, Optional, Sequence

from ascendd.errors import ProbeUnavailable
from ascendd.host.command import CommandOutcome, RunCommand, run_command
from ascendd.host.files import HostFiles

USUAL_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


def find_tool(name: str, files: HostFiles, environ: Mapping[str, str]) -> Optional[str]:
    """Return the path to execute `name` by, which can be a path itself; None where this host has no such tool."""
    if "/" in name:
        candidates = [name]
    else:
        folders = [folder for folder in environ.get("PATH", "").split(":") if folder.startswith("/")]
        candidates = [f"{folder.rstrip('/')}/{name}" for folder in dict.fromkeys([*folders, *USUAL_FOLDERS])]
    found = next((path for path in candidates if files.is_executable(path)), None)
    return None if found is None else files.real(found)


def host_runner(files: HostFiles) -> RunCommand:
    """Return what runs a tool of this host; on a fake one, tools of the machine around it do not count."""
    if not files.root:
        return run_command

    def run(argv: Sequence[str], timeout_s: float, environ: Mapping[str, str]) -> CommandOutcome:
        is_inside = Path(argv[0]).is_relative_to(files.root)
        path = argv[0] if is_inside else find_tool(argv[0], files, environ)
        if path is None:
            raise ProbeUnavailable(f"{argv[0]} is not on this host", path=argv[0])
        return run_command([path, *argv[1:]], timeout_s, tool_environ(files, environ))

    return run


def tool_environ(files: HostFiles, environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return what a tool is run with: a fake one needs a shell's path, and finds its host by FAKE_HOST."""
    if not files.root:
        return environ
    return {**environ, "PATH": ":".join(USUAL_FOLDERS), "FAKE_HOST": files.root}
