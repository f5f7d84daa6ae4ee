#!/bin/bash
# Make the RPM package of ascendd from a bundle. Needs rpmbuild (openEuler: rpm-build; Debian: rpm).
#
#   packaging/rpm.sh BUNDLE OUT_FOLDER
set -euo pipefail
. "$(dirname "$0")/from_bundle.sh"

abis="$(echo "$pythons" | tr , '\n' | sed 's/.*/python(abi) = &/' | paste -sd '|' | sed 's/|/ or /g')"

packaging/stage.sh "$bundle" "$work/tree"
rpmbuild -bb packaging/rpm/ascendd.spec --target "$architecture" --quiet \
    --define "_topdir $work/rpm" --define "_rpmdir $out" --define "_rpmfilename %{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm" \
    --define "_release_version $version" --define "_tree $work/tree" --define "_pythons $abis"
ls -l "$out"/ascendd-"$version"-1."$architecture".rpm | awk '{printf "%s: %.0f MB\n", $NF, $5 / 1e6}'
