#!/bin/bash
# What deb.sh and rpm.sh begin with, for `.`: their two arguments, what the bundle says of itself, a folder to work in.
#
# Gives bundle, out (absolute paths), version, architecture (x86_64 or aarch64), pythons (3.11,3.12) and work, which goes
# when the script ends; the current folder is the checkout's.
name="$(basename "$0")"
[ $# -eq 2 ] || { echo "usage: packaging/$name BUNDLE OUT_FOLDER" >&2; exit 64; }
[ -f "$1/bundle.json" ] || { echo "$name: $1 is no bundle; make one with packaging/bundle.sh" >&2; exit 64; }
bundle="$(realpath "$1")"
mkdir -p "$2"
out="$(realpath "$2")"
cd "$(dirname "$0")/.."

field() { sed -n "s/.*\"$1\": \(\[[^]]*\]\|\"[^\"]*\"\).*/\1/p" "$bundle/bundle.json" | tr -d '[]" '; }
version="$(field version)"
architecture="$(field architecture)"
pythons="$(field pythons)"
case "$architecture" in
    x86_64 | aarch64) ;;
    *) echo "$name: the architecture in $bundle/bundle.json is \`$architecture\`, wanted x86_64 or aarch64; make the bundle anew" >&2; exit 64 ;;
esac

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
