"""
`./install.sh VERB`, or `python3 -m installer VERB` in the unpacked bundle.

Exit statuses: 0 done, or nothing to do; 64 wrong usage; 69 refused, `verify` found something, or
`download` could not take what only the vendor's page gives; 71 a step failed, `resume` goes on, or a download failed,
`download` goes on; 75 the host is to be rebooted, then `resume`; 130 interrupted, `resume` goes on.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import List, Optional, Tuple

from ascendd.errors import AscenddError, ExitCode, PreflightFailed, UsageError
from ascendd.host.pci import find_pci_npus
from ascendd.host.version_files import read_driver
from ascendd.preflight.target import DeviceChoice, choose_target

from .bundle import Bundle, read_bundle
from .download.command import add_options, download
from .host import LOG_FOLDER, Host, bundle_folder
from .media import Media, read_media
from .media_archive import clear_away, is_archive, unpack
from .os_packages import choose_manager
from .package_signatures import judge_signatures
from .run import Run
from .settings import Settings
from .state import InstallState
from .step import Found
from .steps import make_steps
from .steps.reboot import RebootOutstanding
from .torch_stack import ALLOW_FLAG

REBOOT_OUTSTANDING = 75
INTERRUPTED = 130
# A firmware update that an earlier run left behind takes minutes.
_LOCK_WAIT_S = 1800.0


class _Parser(argparse.ArgumentParser):
    """Wrong usage is exit 64 for every verb; argparse's own is 2."""

    def error(self, message: str) -> None:  # type: ignore[override]
        sys.stderr.write(f"error ASD-U01: {message}; see --help\n")
        sys.exit(int(ExitCode.USAGE))


def main(argv: Optional[List[str]] = None) -> int:
    """Run one verb and return the exit status."""
    args = _parser().parse_args(argv)
    host = Host(args.root)
    try:
        return _VERBS[args.verb](host, args)
    except RebootOutstanding as barrier:
        go_on = (
            "it goes on by itself afterwards"
            if barrier.is_coming
            else "reboot the host, then run `./install.sh resume`"
        )
        host.say(f"driver and firmware need a reboot: {go_on}")
        return 0 if barrier.is_coming else REBOOT_OUTSTANDING
    except AscenddError as error:
        sys.stderr.write(f"error {error.code}: {error.message}\nremedy: {error.remedy}\n")
        return int(error.exit_code)
    except KeyboardInterrupt:
        host.has_left_command = True  # Ctrl-C reaches no command of ours: they are sessions of their own.
        sys.stderr.write(f"interrupted; `./install.sh {'download' if args.verb == 'download' else 'resume'}` goes on\n")
        return INTERRUPTED
    finally:
        if not host.has_left_command:
            clear_away(host, is_locked=False)


def _parser() -> _Parser:
    parser = _Parser(prog="install.sh", description="Install ascendd and what it needs on this host, offline.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb, sentence in (
        ("plan", "show what apply would do, every command, and change nothing"),
        ("apply", "install or upgrade"),
        ("verify", "prove every step and ask the doctor"),
        ("resume", "go on with a run that was stopped, killed or rebooted"),
        ("uninstall", "take back what was installed; what was there before stays or comes back"),
        ("download", "on a machine with a network: fill a media folder for a host without one"),
    ):
        command = verbs.add_parser(verb, help=sentence, description=sentence)
        command.add_argument("--root", default="/", help=argparse.SUPPRESS)
        command.add_argument(
            "--media", metavar="PATH", help="folder of vendor packages with its SHA256SUMS, or a tar or zip of it"
        )
        if verb == "download":
            add_options(command)
        else:
            command.add_argument(
                "--trust",
                metavar="FILE",
                help="the vendor's keyring or root certificate; proves .asc or .cms beside packages",
            )
        if verb in ("plan", "apply", "verify"):
            command.add_argument("--device", choices=("auto", "npu", "cpu"), default="auto", help="kind of host")
            command.add_argument("--install-path", default="/usr/local/Ascend", help="where CANN and the driver go")
            command.add_argument(
                ALLOW_FLAG, action="store_true", help="install a torch_npu that no table lists for this CANN"
            )
        if verb in ("plan", "apply"):
            command.add_argument("--reboot", action="store_true", help="reboot when it is time, and go on by itself")
        if verb in ("apply", "resume", "uninstall"):
            command.add_argument("--yes", action="store_true", help="ask nothing")
    return parser


def _settings(host: Host, args: argparse.Namespace) -> Settings:
    target = choose_target(host.files, DeviceChoice(args.device), None, has_model=False)
    host.say(f"target: {'NPU' if target.is_npu else 'CPU'} host, {target.reason}")
    media = _absolute(args.media)
    return Settings(
        target.is_npu, media, args.install_path.rstrip("/"), getattr(args, "reboot", False), args.allow_unverified,
        trust=_absolute(args.trust),
    )  # fmt: skip


def _prepare(host: Host, settings: Settings, *, is_upgrade: bool, state: InstallState) -> Run:
    """Read and prove bundle and media, and make the run over its steps."""
    bundle: Bundle = read_bundle(bundle_folder())
    problems = bundle.problems()
    media = Media("")
    if settings.media is not None:
        families = tuple(sorted({npu.family for npu in find_pci_npus(host.files)}))
        folder = unpack(host, settings.media) if is_archive(settings.media) else settings.media
        media = read_media(folder, host.architecture, families, choose_manager(host))
        if settings.is_npu:
            notes, unproven = judge_signatures(host, media, settings.trust)
            for note in notes:
                host.say(note)
            problems += [*media.problems, *unproven]
        else:
            problems += [problem for problem in media.problems if ".run" not in problem.split(" ")[0]]
    return Run(host, state, make_steps(bundle, media, settings, is_upgrade=is_upgrade), settings, problems)


def _plan(host: Host, args: argparse.Namespace) -> int:
    state = InstallState.load(host)
    if state.is_unfinished:
        host.say(f"a run of `{state.verb}` was not finished; `resume` goes on with it, `uninstall` takes it back")
    settings = _settings(host, args)
    _prepare(host, settings, is_upgrade=_has_driver(host), state=state).plan()
    return 0


def _apply(host: Host, args: argparse.Namespace) -> int:
    state = InstallState.load(host)
    if state.is_unfinished:
        raise PreflightFailed(
            f"a run of `{state.verb}` was not finished", remedy="Run `resume` to go on with it, or `uninstall`."
        )
    settings = _settings(host, args)
    run = _prepare(host, settings, is_upgrade=_has_driver(host), state=state)
    if not run.plan():
        return 0
    _ask(args, "do this?")
    with state.lock(0):
        clear_away(host, is_locked=True)
        run.begin()
        run.apply()
    host.say(f"installed; log and report are in {LOG_FOLDER}")
    return 0


def _resume(host: Host, args: argparse.Namespace) -> int:
    if not InstallState.load(host).is_unfinished:
        host.say("nothing to resume")
        return 0
    with InstallState(host).lock(_LOCK_WAIT_S):
        clear_away(host, is_locked=True)
        # Read under the lock: an earlier run may have moved it on until now.
        state = InstallState.load(host)
        run, settings = _prepare_again(host, args, state)
        if state.verb == "uninstall":
            run.uninstall()
        elif state.is_unfinished:
            state.options = settings.to_json()
            run.apply()
            host.say(f"installed; log and report are in {LOG_FOLDER}")
    return 0


def _uninstall(host: Host, args: argparse.Namespace) -> int:
    state = InstallState.load(host)
    if not state.steps:
        host.say("nothing to uninstall: this installer did nothing on this host")
        return 0
    with state.lock(0 if not state.is_unfinished else _LOCK_WAIT_S):
        clear_away(host, is_locked=True)
        state = InstallState.load(host)
        run, _ = _prepare_again(host, args, state)
        run.show_uninstall()
        _ask(args, "take all of this back?")
        run.uninstall()
    host.say("uninstalled")
    return 0


def _verify(host: Host, args: argparse.Namespace) -> int:
    state = InstallState.load(host)
    run = _prepare(host, _settings(host, args), is_upgrade=_has_driver(host), state=state)
    failures = run.verify()
    return int(ExitCode.PREFLIGHT) if failures else 0


def _download(host: Host, args: argparse.Namespace) -> int:
    return download(host, args, read_bundle(bundle_folder()))


def _prepare_again(host: Host, args: argparse.Namespace, state: InstallState) -> Tuple[Run, Settings]:
    """Make the run that the state speaks of; its media folder may have moved."""
    moved = {name: _absolute(getattr(args, name)) for name in ("media", "trust") if getattr(args, name)}
    settings = Settings(**{**state.options, **moved})
    # The order is that of the run's beginning: a driver that it has installed itself is no upgrade.
    is_upgrade = state.steps.get("driver", {}).get("found") not in (None, Found.ABSENT.value, Found.BROKEN.value)
    return _prepare(host, settings, is_upgrade=is_upgrade, state=state), settings


def _absolute(path: Optional[str]) -> Optional[str]:
    """Return the path as it is from everywhere; `resume` may be started from another folder."""
    return str(Path(path).resolve()) if path else None


def _has_driver(host: Host) -> bool:
    return read_driver(host.files).version is not None


def _ask(args: argparse.Namespace, question: str) -> None:
    """Ask on a terminal. Raises UsageError where nobody can answer, PreflightFailed after a no."""
    if args.yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("nobody can answer here, since the input is no terminal", remedy="Add --yes.")
    if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise PreflightFailed("not begun, as you said", remedy="Nothing was changed.")


_VERBS = {
    "plan": _plan,
    "apply": _apply,
    "resume": _resume,
    "uninstall": _uninstall,
    "verify": _verify,
    "download": _download,
}

if __name__ == "__main__":
    sys.exit(main())
