#!/bin/bash
# Print a Python 3.10, 3.11 or 3.12 that can make a virtual environment; say what to do where there is none.
# Usage: find_python.sh [PYTHON]    PYTHON limits the search to that interpreter.
set -eu

probe='
import sys
if not (3, 10) <= sys.version_info[:2] <= (3, 12):
    sys.exit("is Python %d.%d" % sys.version_info[:2])
try:
    import ensurepip, venv
except ImportError:
    sys.exit("lacks venv; on Debian and Ubuntu: apt install python3-venv")
'
tried=""
for name in ${1:-python3.11 python3.12 python3.10 python3}; do
    path="$(command -v "$name")" || { [ -z "${1:-}" ] || tried+="  $name is not a command"$'\n'; continue; }
    # A version manager leaves names on PATH that start nothing, so each is started to be sure.
    if why="$("$path" -I -c "$probe" 2>&1)"; then
        echo "$path"
        exit 0
    fi
    tried+="  $path ${why##*$'\n'}"$'\n'
done
{
    echo "ascendd needs Python 3.10, 3.11 or 3.12 with venv, and found none."
    printf '%s' "$tried"
    echo "Install one (Debian, Ubuntu: apt install python3 python3-venv), or name one: make PYTHON=/path/to/python3.11 ..."
} >&2
exit 1
