#!/bin/bash
# Make the Debian package of ascendd from a bundle. Needs debhelper and dpkg-dev.
#
#   packaging/deb.sh BUNDLE OUT_FOLDER
set -euo pipefail
[ $# -eq 2 ] || { echo "usage: packaging/deb.sh BUNDLE OUT_FOLDER" >&2; exit 64; }
bundle="$(realpath "$1")"
mkdir -p "$2"
out="$(realpath "$2")"
cd "$(dirname "$0")/.."
[ -f "$bundle/bundle.json" ] || { echo "deb.sh: $1 is no bundle; make one with packaging/bundle.sh" >&2; exit 64; }

field() { sed -n "s/.*\"$1\": \(\[[^]]*\]\|\"[^\"]*\"\).*/\1/p" "$bundle/bundle.json" | tr -d '[]" '; }
version="$(field version)"
case "$(field architecture)" in x86_64) architecture=amd64 ;; aarch64) architecture=arm64 ;; esac
# Any of the Pythons that the wheels are for; the -venv package of Debian and Ubuntu brings the interpreter.
venvs="$(field pythons | tr , '\n' | sed 's/.*/python&-venv/' | paste -sd '|' | sed 's/|/ | /g')"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
source="$work/ascendd-$version"
mkdir "$source"
cp -R packaging/debian "$source/debian"
packaging/stage.sh "$bundle" "$source/tree"
cp packaging/example.yaml "$source/"
sed -i "s/@ARCHITECTURE@/$architecture/; s/@VENVS@/$venvs/" "$source/debian/control"
printf 'ascendd (%s) unstable; urgency=medium\n\n  * Release %s; see docs in /usr/lib/ascendd/bundle/docs.\n\n -- ascendd <ascendd@localhost>  %s\n' \
    "$version" "$version" "$(date -R -d "@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}")" >"$source/debian/changelog"
(cd "$source" && dpkg-buildpackage --build=binary --no-sign --no-check-builddeps --host-arch "$architecture" >"$work/log" 2>&1) || {
    tail -40 "$work/log" >&2
    exit 1
}
cp "$work"/ascendd_*.deb "$out/"
ls -l "$out"/ascendd_"$version"_"$architecture".deb | awk '{printf "%s: %.0f MB\n", $NF, $5 / 1e6}'
