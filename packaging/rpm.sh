#!/bin/bash
# Make the RPM package of ascendd from a bundle. Needs rpmbuild (openEuler: rpm-build; Debian: rpm).
#
#   packaging/rpm.sh BUNDLE OUT_FOLDER
set -euo pipefail
[ $# -eq 2 ] || { echo "usage: packaging/rpm.sh BUNDLE OUT_FOLDER" >&2; exit 64; }
bundle="$(realpath "$1")"
mkdir -p "$2"
out="$(realpath "$2")"
cd "$(dirname "$0")/.."
[ -f "$bundle/bundle.json" ] || { echo "rpm.sh: $1 is no bundle; make one with packaging/bundle.sh" >&2; exit 64; }

field() { sed -n "s/.*\"$1\": \(\[[^]]*\]\|\"[^\"]*\"\).*/\1/p" "$bundle/bundle.json" | tr -d '[]" '; }
architecture="$(field architecture)"
pythons="$(field pythons | tr , '\n' | sed 's/.*/python(abi) = &/' | paste -sd '|' | sed 's/|/ or /g')"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
packaging/stage.sh "$bundle" "$work/tree"
rpmbuild -bb packaging/rpm/ascendd.spec --target "$architecture" --quiet \
    --define "_topdir $work/rpm" --define "_rpmdir $out" --define "_rpmfilename %{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm" \
    --define "_release_version $(field version)" --define "_tree $work/tree" --define "_pythons $pythons"
ls -l "$out"/ascendd-"$(field version)"-1."$architecture".rpm | awk '{printf "%s: %.0f MB\n", $NF, $5 / 1e6}'
