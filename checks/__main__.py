"""`python3 -m checks`: the host's part of `ascendd doctor` from an unpacked bundle, before any venv exists."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import List, Optional

from ascendd.errors import AscenddError, ExitCode, UsageError
from ascendd.host.fake_host import require_fake_host
from ascendd.preflight.context import CheckRequest
from ascendd.preflight.discover import select
from ascendd.preflight.doctor import Doctor, DoctorOptions
from ascendd.preflight.explain import explain
from ascendd.preflight.language import choose_language

from . import CHECKS


class _Parser(argparse.ArgumentParser):
    """Wrong usage is exit 64 for every verb; argparse's own is 2."""

    def error(self, message: str) -> None:  # type: ignore[override]
        sys.stderr.write(f"error ASD-U01: {message}; see --help\n")
        sys.exit(int(ExitCode.USAGE))


def main(argv: Optional[List[str]] = None) -> int:
    """Run the checks and return the doctor's exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        language = choose_language(args.lang, os.environ)
        options = DoctorOptions(language, args.as_json, args.junit, args.bundle, args.watch, args.fix, args.yes)
        options.check()
        if args.explain is not None:
            sys.stdout.write(explain(args.explain, CHECKS, language) + "\n")
            return 0
        checks = select(CHECKS, args.only, args.deep, args.skip)
        root = require_fake_host(args.host_root)
        request = CheckRequest(device=args.device, model_path=args.model, deep=args.deep, root=root)
        return Doctor(checks, request, options).run()
    except UsageError as error:
        parser.error(error.message)
    except AscenddError as error:
        sys.stderr.write(f"error {error.code}: {error.message}\n    {error.remedy}\n")
        return int(error.exit_code)
    return int(ExitCode.USAGE)


def _parser() -> _Parser:
    parser = _Parser(prog="python3 -m checks", description="Check this host for what ascendd needs.")
    parser.add_argument("--device", choices=("auto", "npu", "cpu"), default="auto")
    parser.add_argument("--model", metavar="PATH", help="a model folder to check")
    parser.add_argument("--deep", action="store_true", help="also what takes minutes: checksums")
    parser.add_argument("--only", metavar="ID,...", action="append", default=[], help="run these; can be repeated")
    parser.add_argument("--skip", metavar="ID,...", action="append", default=[], help="leave these out")
    parser.add_argument("--explain", metavar="ID", help="tell what a check does, and run none")
    parser.add_argument("--junit", metavar="FILE", type=Path, help="write JUnit XML there as well")
    parser.add_argument("--host-root", metavar="DIR", default="/", help="check a fake host, a folder with .fake-host")
    parser.add_argument(
        "--watch", metavar="SECONDS", type=float, help="look again at what can change, this often, until Ctrl-C"
    )
    parser.add_argument("--fix", action="store_true", help="show what a setting puts right; with --yes, do it")
    parser.add_argument("--yes", action="store_true", help="with --fix: run what it shows")
    parser.add_argument("--bundle", metavar="FILE", type=Path, help="write a support archive there, secrets masked")
    parser.add_argument("--lang", metavar="zh|en", help="the language; default: the locale's")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
