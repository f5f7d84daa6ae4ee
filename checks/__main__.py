"""`python3 -m checks`: the host's part of `ascendd doctor` from an unpacked bundle, before any venv exists."""

from __future__ import annotations

import argparse
import json
import sys
from typing import List, Optional

from ascendd.errors import AscenddError, ExitCode
from ascendd.host.fake_host import require_fake_host
from ascendd.preflight.context import CheckContext, CheckRequest
from ascendd.preflight.discover import select
from ascendd.preflight.report import exit_code, print_report, to_json
from ascendd.preflight.runner import run_checks

from . import CHECKS


class _Parser(argparse.ArgumentParser):
    """Wrong usage is exit 64 for every verb; argparse's own is 2."""

    def error(self, message: str) -> None:  # type: ignore[override]
        sys.stderr.write(f"error ASD-U01: {message}; see --help\n")
        sys.exit(int(ExitCode.USAGE))


def main(argv: Optional[List[str]] = None) -> int:
    """Run the checks and return the doctor's exit code."""
    parser = _Parser(prog="python3 -m checks", description="Check this host for what ascendd needs.")
    parser.add_argument("--device", choices=("auto", "npu", "cpu"), default="auto")
    parser.add_argument("--model", metavar="PATH", help="a model folder to check")
    parser.add_argument("--deep", action="store_true", help="also what takes minutes: checksums")
    parser.add_argument("--only", metavar="ID", action="append", default=[], help="run this check; can be repeated")
    parser.add_argument("--skip", metavar="ID", action="append", default=[], help="leave this check out")
    parser.add_argument("--host-root", metavar="DIR", default="/", help="check a fake host, a folder with .fake-host")
    parser.add_argument("--json", action="store_true", dest="as_json")
    args = parser.parse_args(argv)
    try:
        checks = select(CHECKS, args.only, args.deep, args.skip)
        root = require_fake_host(args.host_root)
    except AscenddError as error:
        parser.error(error.message)
    request = CheckRequest(device=args.device, model_path=args.model, deep=args.deep, root=root)
    results = run_checks(checks, request)
    titles = {check.id: check.title for check in checks}
    target = CheckContext(request).target
    if args.as_json:
        json.dump(to_json(results, target, titles), sys.stdout, indent=2, ensure_ascii=False)
        sys.stdout.write("\n")
    else:
        print_report(results, target, titles)
    return int(exit_code(results))


if __name__ == "__main__":
    sys.exit(main())
