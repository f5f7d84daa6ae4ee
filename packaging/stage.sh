#!/bin/bash
# Lay out what a package installs, below a folder: the bundle, units, man pages, shell completion.
#
#   packaging/stage.sh BUNDLE TREE
#
# BUNDLE is a folder made by packaging/bundle.sh. The Python that writes man pages and completion is ${PYTHON:-python3};
# ascendd must be installed for it.
set -euo pipefail
[ $# -eq 2 ] || { echo "usage: packaging/stage.sh BUNDLE TREE" >&2; exit 64; }
bundle="$(realpath "$1")"
mkdir -p "$2"
tree="$(realpath "$2")"
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"

install -d "$tree"/usr/{bin,lib/ascendd,lib/systemd/system,lib/sysusers.d,lib/tmpfiles.d}
cp -R -T "$bundle" "$tree/usr/lib/ascendd/bundle"
find "$bundle/systemd" -maxdepth 1 -type f -exec install -m 644 -t "$tree/usr/lib/systemd/system" {} +
install -m 644 "$bundle/systemd/sysusers.d/ascendd.conf" "$tree/usr/lib/sysusers.d/ascendd.conf"
install -m 644 "$bundle/systemd/tmpfiles.d/ascendd.conf" "$tree/usr/lib/tmpfiles.d/ascendd.conf"
ln -s /opt/ascendd/current/bin/ascendd "$tree/usr/bin/ascendd"

install -d "$tree"/usr/share/man/man{5,8} "$tree/usr/share/bash-completion/completions" \
    "$tree/usr/share/zsh/vendor-completions" "$tree/usr/share/fish/vendor_completions.d"
"$python" -m ascendd.cli.man_page "$tree/usr/share/man"
"$python" -m ascendd.cli.completion bash >"$tree/usr/share/bash-completion/completions/ascendd"
"$python" -m ascendd.cli.completion zsh >"$tree/usr/share/zsh/vendor-completions/_ascendd"
"$python" -m ascendd.cli.completion fish >"$tree/usr/share/fish/vendor_completions.d/ascendd.fish"
