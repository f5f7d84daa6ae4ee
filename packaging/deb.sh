#!/bin/bash
# Make the Debian package of ascendd from a bundle. Needs debhelper and dpkg-dev.
#
#   packaging/deb.sh BUNDLE OUT_FOLDER
set -euo pipefail
. "$(dirname "$0")/from_bundle.sh"

case "$architecture" in x86_64) debian=amd64 ;; aarch64) debian=arm64 ;; esac
# Any of the Pythons that the wheels are for; the -venv package of Debian and Ubuntu brings the interpreter.
venvs="$(echo "$pythons" | tr , '\n' | sed 's/.*/python&-venv/' | paste -sd '|' | sed 's/|/ | /g')"

source="$work/ascendd-$version"
mkdir "$source"
cp -R packaging/debian "$source/debian"
packaging/stage.sh "$bundle" "$source/tree"
cp packaging/example.yaml "$source/"
sed -i "s/@ARCHITECTURE@/$debian/; s/@VENVS@/$venvs/" "$source/debian/control"
printf 'ascendd (%s) unstable; urgency=medium\n\n  * Release %s; see docs in /usr/lib/ascendd/bundle/docs.\n\n -- ascendd <ascendd@localhost>  %s\n' \
    "$version" "$version" "$(date -R -d "@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}")" >"$source/debian/changelog"
(cd "$source" && dpkg-buildpackage --build=binary --no-sign --no-check-builddeps --host-arch "$debian" >"$work/log" 2>&1) || {
    tail -40 "$work/log" >&2
    exit 1
}
cp "$work"/ascendd_*.deb "$out/"
ls -l "$out"/ascendd_"$version"_"$debian".deb | awk '{printf "%s: %.0f MB\n", $NF, $5 / 1e6}'
