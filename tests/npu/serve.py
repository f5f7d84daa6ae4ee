"""An instance from its file without the gate of preflight checks: a stand-in has neither PCI functions nor a driver."""

from __future__ import annotations

import sys
from pathlib import Path

from ascendd.config.load import load_file
from ascendd.errors import AscenddError
from ascendd.supervisor.instance import run_instance


def main(config_file: str) -> int:
    """Run the instance and return its exit status."""
    try:
        return run_instance(load_file(Path(config_file)), "standin", gate=lambda _config: None).exit_code
    except AscenddError as error:
        print(error.code, error.message, file=sys.stderr)
        return int(error.exit_code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
