"""
One check in a process of its own: reads a JSON request on standard input, writes the result to standard output.

Run as a program by preflight.runner. Vendor libraries print where they like, so what they take for standard output is
standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time


def main() -> int:
    """Run the check that the request names."""
    result_fd = os.dup(1)
    os.dup2(2, 1)
    request = json.loads(sys.stdin.buffer.read())
    sys.path[:] = request["sys_path"]
    from ascendd.errors import AscenddError
    from ascendd.preflight.check import CheckResult, Remedy, Verdict
    from ascendd.preflight.context import CheckContext, CheckRequest

    check = getattr(importlib.import_module(request["module"]), request["name"])()
    started = time.monotonic()
    try:
        result = check.run(CheckContext(CheckRequest(**request["context"])))
    except AscenddError as error:
        facts = {key: value for key, value in error.facts.items() if isinstance(value, (str, int, float))}
        remedy = Remedy(error.code, error.remedy)
        result = CheckResult(Verdict.ERROR, f"could not check: {error.message}", facts, remedy)
    data = {**result.to_json(), "id": check.id, "duration_s": round(time.monotonic() - started, 3)}
    with os.fdopen(result_fd, "w") as pipe:
        json.dump(data, pipe)
    return 0


if __name__ == "__main__":
    sys.exit(main())
