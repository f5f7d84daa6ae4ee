#!/bin/bash
# Start the installer of an unpacked bundle: ./install.sh plan|apply|verify|resume|uninstall|download [options]; --help lists them.
set -eu
module=installer
# What the maintainer scripts of the packages run.
if [ "${1:-}" = package ]; then module=installer.package; shift; fi
here="$(cd "$(dirname "$(readlink -f "$0")")" && pwd)"

for name in python3.11 python3.12 python3.10 python3.9 python3; do
    path="$(command -v "$name")" || continue
    # A version manager leaves names on PATH that start nothing, so each is started to be sure.
    "$path" -I -c 'import sys; sys.exit(sys.version_info < (3, 9))' >/dev/null 2>&1 || continue
    # -I: nothing of this shell's Python settings; -B: the bundle may lie on a medium that cannot be written.
    exec "$path" -I -B -c 'import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)' "$here" "$module" "$@"
done
{
    echo "The installer needs Python 3.9 or newer and found none on PATH."
    echo "Debian, Ubuntu: apt install python3 python3-venv      openEuler: dnf install python3"
    echo "Without a network, take the package from the installation medium of the operating system."
} >&2
exit 71
