"""
What the maintainer scripts of the .deb and the .rpm run: `install.sh package configure|remove`.

The package holds the bundle (wheels, installer, checks) and the units; the release is made from the wheels on the host
that gets it, with the Python that is there. Standard library only.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import List, Optional

from ascendd.errors import AscenddError

from .bundle import read_bundle
from .host import LOG_FOLDER, Host, bundle_folder
from .releases import Releases
from .steps.units import remove_enabled_links, stop_patterns


def main(argv: Optional[List[str]] = None) -> int:
    """Run one verb and return the exit status."""
    parser = argparse.ArgumentParser(prog="install.sh package", description=__doc__)
    parser.add_argument("verb", choices=tuple(_VERBS))
    args = parser.parse_args(argv)
    host = Host("/")
    try:
        _VERBS[args.verb](host)
    except AscenddError as error:
        sys.stderr.write(f"error {error.code}: {error.message}\nremedy: {error.remedy}\n")
        return int(error.exit_code)
    return 0


def _configure(host: Host) -> None:
    """Make the release, and move running instances to it one after another."""
    bundle = read_bundle(bundle_folder())
    releases = Releases(host)
    host.say(f"ascendd: making {bundle.release_folder} (log: {LOG_FOLDER}/install.log)")
    releases.build(bundle)
    releases.use(bundle.version)
    for version in releases.prune():
        host.say(f"ascendd: release {version} removed; the current and the previous one stay")


def _remove(host: Host) -> None:
    """Stop and disable the units and remove the releases; configuration, models and logs stay."""
    releases = Releases(host)
    units = [unit for unit in read_bundle(bundle_folder()).units() if "/" not in unit]
    if host.has_systemd:
        for unit in releases.running_units():
            host.say(f"ascendd: stopping {unit}")
        subprocess.run(["systemctl", "stop", *stop_patterns(units)], timeout=600, check=False, capture_output=True)
    # Disabling a template disables its instances; it works without a running systemd, too.
    subprocess.run(["systemctl", "disable", "--quiet", *units], timeout=60, check=False, capture_output=True)
    remove_enabled_links(host, units)
    releases.remove_all()


_VERBS = {"configure": _configure, "remove": _remove}

if __name__ == "__main__":
    sys.exit(main())
