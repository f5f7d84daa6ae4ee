"""
One check in a process of its own: reads a JSON request on standard input, writes the result to standard output.

Run as a program by preflight.runner. Vendor libraries print where they like, so what they take for standard output is
standard error.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import time
from types import ModuleType


def main() -> int:
    """Run the check that the request names."""
    result_fd = os.dup(1)
    os.dup2(2, 1)
    request = json.loads(sys.stdin.buffer.read())
    sys.path[:] = request["sys_path"]
    from ascendd.errors import AscenddError
    from ascendd.preflight.check import CheckResult, Remedy, Verdict
    from ascendd.preflight.context import CheckContext, CheckRequest

    check = getattr(_load(request["module"]), request["name"])()
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


def _load(name: str) -> ModuleType:
    """Import the module `name` without the other checks, which its package would: two thirds of the time of a child."""
    package = name.rpartition(".")[0]
    spec = importlib.util.find_spec(package) if package.rpartition(".")[2] == "checks" else None
    if spec is not None and package not in sys.modules:
        sys.modules[package] = importlib.util.module_from_spec(spec)  # its path, without what it would run
    return importlib.import_module(name)


if __name__ == "__main__":
    sys.exit(main())
