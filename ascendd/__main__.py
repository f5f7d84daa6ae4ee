"""Entry of `python -m ascendd`: private roles go straight to their module, all else to the command line."""

from __future__ import annotations

import importlib
import sys

ROLES = {
    "_engine": "ascendd.engine.main",
    "_vllm": "ascendd.vllm.keeper",
    "_worker": "ascendd.engine.exec.worker",
    "_api": "ascendd.api.main",
    "_metrics": "ascendd.telemetry.exporter",
    "_logwriter": "ascendd.telemetry.log_writer",
}


def main() -> int:
    """Run the role or verb named first on the command line."""
    if len(sys.argv) > 1 and sys.argv[1] in ROLES:
        try:
            module = importlib.import_module(ROLES[sys.argv[1]])
        except Exception as error:
            from ascendd.ipc.installation import tell_import_failure

            return tell_import_failure(sys.argv[1], sys.argv[2:], error)
        return int(module.main(sys.argv[2:]))
    from ascendd.cli.app import main as cli_main

    return cli_main()


if __name__ == "__main__":
    sys.exit(main())
