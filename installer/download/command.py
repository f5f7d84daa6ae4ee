"""The verb `download`: what is wanted, what has come, and what only the vendor's own page gives."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Dict, Optional

from ascendd.errors import AscenddError, ExitCode, UsageError

from ..bundle import Bundle
from ..host import Host
from ..torch_stack import ALLOW_FLAG
from .fetch import Fetcher, megabytes
from .filling import Filling, Report
from .os_systems import KEYRINGS, SYSTEMS
from .signatures import Signatures

_INSTALLED = "dpkg-query -W -f '${Package} ${Version}\\n', or rpm -qa --queryformat '%%{NAME} %%{EVR}\\n'"


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    command.add_argument("--cann", metavar="VERSION", help="the CANN of an NPU host, such as 8.5.0; none: a CPU host")
    command.add_argument("--chip", metavar="NAME", help="as the vendor's packages name it: 910b, 310p, a3, 910, 950")
    command.add_argument("--driver", metavar="VERSION", help="version of the driver's package")
    command.add_argument("--firmware", metavar="VERSION", help="version of the firmware's package")
    command.add_argument("--has-driver", action="store_true", help="the host has driver and firmware already")
    command.add_argument("--nnal", action="store_true", help="take nnal as well")
    command.add_argument("--vendor-url", metavar="URL", help="a site's own folder of vendor packages and SHA256SUMS")
    command.add_argument("--os", choices=SYSTEMS, help="distribution of the host")
    command.add_argument(
        "--os-repository", action="append", metavar="LINE", help="`deb URL SUITE COMPONENT...` or `rpm URL`; repeatable"
    )
    command.add_argument("--installed", metavar="FILE", help=f"what the host has: {_INSTALLED}")
    command.add_argument("--kernel", metavar="RELEASE", help="kernel of the host, to take its headers and a compiler")
    command.add_argument("--keyring", metavar="FILE", help="keys that sign the repositories of the operating system")
    command.add_argument("--index", default="https://pypi.org/simple", metavar="URL", help="simple index of wheels")
    command.add_argument(
        "--wheel", action="append", metavar="NAME==VERSION", help="another version, or one more wheel; repeatable"
    )
    command.add_argument(ALLOW_FLAG, action="store_true", help="take a torch_npu that no table lists for this CANN")
    command.add_argument("--json", action="store_true", help="print the report as JSON; progress goes to stderr")


def download(host: Host, args: argparse.Namespace, bundle: Bundle) -> int:
    """Fill the media folder and return the exit status: 0 complete, 69 when files of the vendor are outstanding."""
    if args.json:
        host.say = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: T201 - a command line tool
    started = time.monotonic()
    fetcher = Fetcher(host.say)
    signatures = Signatures(shutil.which("gpgv"), _keyring(args))
    report = Report(str(Path(args.media or "").resolve()))
    facts: Dict[str, Any] = {}
    try:
        Filling(host, args, bundle, fetcher=fetcher, signatures=signatures, report=report).run()
        status = int(ExitCode.PREFLIGHT) if report.outstanding else 0
        facts["outcome"] = "vendor files outstanding" if report.outstanding else "complete"
    except AscenddError as error:
        if not args.json:
            raise
        status = int(error.exit_code)
        facts = {"outcome": "failed", "error": {"code": error.code, "message": error.message, "remedy": error.remedy}}
    if args.json:
        facts.update(
            folder=report.folder,
            files=report.files,
            outstanding=report.outstanding,
            notes=report.notes,
            signatures=signatures.verdicts,
            num_bytes_fetched=fetcher.num_bytes,
            duration_s=round(time.monotonic() - started, 1),
        )
        print(json.dumps(facts, indent=1))  # noqa: T201 - a command line tool
        return status
    for url, verdict in signatures.verdicts.items():
        host.say(f"{url}: {verdict}")
    for note in report.notes:
        host.say(f"note: {note}")
    for entry in report.outstanding:
        host.say(f"outstanding: {entry['file']}: {entry['why']}\n             {entry['page']}")
    end = f"; {len(report.outstanding)} file(s) of the vendor are outstanding, then run this again to prove them"
    host.say(
        f"{report.folder}: {len(report.files)} file(s), {megabytes(fetcher.num_bytes)} fetched in "
        f"{time.monotonic() - started:.0f} s{end if report.outstanding else '; complete'}"
    )
    return status


def _keyring(args: argparse.Namespace) -> Optional[str]:
    """Return the file of keys that is named, or that of the distribution where this machine has it."""
    if args.keyring:
        if not Path(args.keyring).is_file():
            raise UsageError(f"--keyring is `{args.keyring}`, which is no file")
        return str(args.keyring)
    found = KEYRINGS.get((args.os or "").partition("-")[0])
    return found if found and Path(found).is_file() else None
