#!/bin/bash
# Make the bundle that installs ascendd without a network.
#
#   packaging/bundle.sh [--python 3.11]... [--arch x86_64|aarch64]... [--torch VERSION] [--torch-index URL] OUT
#   packaging/bundle.sh --wheels FOLDER [--python 3.11]... [--arch ARCH] OUT
#
# The first form fetches the wheels from the index that pip is configured with (torch from --torch-index, in the version
# of --torch); the second takes wheels that are there, for the architecture that their names tell. OUT becomes a folder and OUT.tar.gz; with more than one --arch,
# OUT-x86_64 and OUT-aarch64 do. The Python that runs this is ${PYTHON:-python3}.
set -euo pipefail
shopt -s nullglob
cd "$(dirname "$0")/.."

python="${PYTHON:-python3}"
pythons=()
archs=()
torch=
torch_index=
wheels=
out=
fail() { echo "bundle.sh: $*" >&2; exit 64; }
while [ $# -gt 0 ]; do
    case "$1" in
        --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
        --python) pythons+=("$2"); shift 2 ;;
        --arch) archs+=("$2"); shift 2 ;;
        --torch) torch="$2"; shift 2 ;;
        --torch-index) torch_index="$2"; shift 2 ;;
        --wheels) wheels="$2"; shift 2 ;;
        -*) fail "unknown option $1" ;;
        *) [ -z "$out" ] || fail "more than one OUT"; out="$1"; shift ;;
    esac
done
[ -n "$out" ] || fail "no OUT; see the head of this file"
[ ! -e "$out" ] || fail "$out is there already"
[ "${#pythons[@]}" -gt 0 ] || pythons=(3.11)
if [ -n "$wheels" ]; then
    ls "$wheels"/*.whl >/dev/null 2>&1 || fail "$wheels holds no wheels"
    told=($(printf '%s\n' "$wheels"/*.whl | sed -n 's/.*_\(x86_64\|aarch64\)\.whl$/\1/p' | sort -u))
    [ "${#told[@]}" -le 1 ] || fail "the wheels of $wheels are for x86_64 and for aarch64; a bundle is for one of them"
    [ "${#archs[@]}" -gt 0 ] || archs=("${told[@]}")
    [ "${#archs[@]}" -ne 1 ] || [ "${#told[@]}" -eq 0 ] || [ "${archs[0]}" = "${told[0]}" ] ||
        fail "--arch is ${archs[0]}, and the wheels of $wheels are for ${told[0]}"
fi
[ "${#archs[@]}" -gt 0 ] || archs=("$(uname -m)")
for arch in "${archs[@]}"; do
    case "$arch" in x86_64 | aarch64) ;; *) fail "--arch is x86_64 or aarch64, not $arch" ;; esac
done
if [ "${#archs[@]}" -gt 1 ]; then
    [ -z "$wheels" ] || fail "--wheels is a folder for one --arch"
    # Each whole or not at all; one that cannot be had does not keep the others back.
    failed=()
    for arch in "${archs[@]}"; do
        "$PWD/packaging/bundle.sh" "${pythons[@]/#/--python=}" --arch="$arch" ${torch:+--torch="$torch"} \
            ${torch_index:+--torch-index="$torch_index"} "$out-$arch" || failed+=("$arch")
    done
    [ "${#failed[@]}" -eq 0 ] || fail "there is no bundle for ${failed[*]}; the reason is above"
    exit 0
fi
started=$SECONDS

work="$(mktemp -d "$(dirname "$out")/.bundle.XXXXXX")"
trap 'rm -rf "$work"' EXIT
mkdir "$work/ascendd" "$work/wheels"

# What the installer and the checks need before anything is installed: standard library only.
cp -R checks installer systemd docs "$work/"
cp -R ascendd/host ascendd/preflight ascendd/{__init__,error_root,errors,request_errors}.py "$work/ascendd/"
install -m 644 -D -t "$work/docs/examples" packaging/{example,gateway}.yaml packaging/polkit/*.rules
cp packaging/install.sh tests/constraints.txt LICENSE README.md "$work/"
chmod 755 "$work/install.sh"
find "$work" -name __pycache__ -prune -exec rm -rf {} +

version="$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' ascendd/__init__.py)"
if [ -n "$wheels" ]; then
    cp "$wheels"/*.whl "$work/wheels/"
else
    pip=("$python" -m pip --disable-pip-version-check --quiet)
    # What is compiled here runs on this architecture only; a bundle for another computes in torch.
    pure=0
    [ "${archs[0]}" = "$(uname -m)" ] || pure=1
    ASCENDD_PURE=$pure "${pip[@]}" wheel --no-deps --wheel-dir "$work/wheels" .
    # The one dependency that is published as source only; it is pure Python.
    "${pip[@]}" wheel --no-deps --wheel-dir "$work/wheels" -c tests/constraints.txt sdnotify
    for target in "${pythons[@]}"; do
        fetch=("${pip[@]}" download --dest "$work/wheels" --only-binary :all: --python-version "$target"
            --implementation cp --platform "manylinux_2_31_$arch" --platform "manylinux_2_28_$arch" --platform "manylinux_2_27_$arch"
            --platform "manylinux_2_17_$arch" --platform "manylinux2014_$arch" --platform "linux_$arch")
        index=(${torch_index:+--index-url "$torch_index"})
        pins=(-c tests/constraints.txt)
        # pip applies a constraint to what it is asked for as well, so another torch needs them without that line.
        if [ -n "$torch" ]; then
            grep -v '^torch==' tests/constraints.txt >"$work/constraints"
            pins=(-c "$work/constraints")
        fi
        "${fetch[@]}" --no-deps "${index[@]}" "${pins[@]}" "torch${torch:+==$torch}" ||
            fail "the index has no torch${torch:+ $torch} for Python $target on $arch; name another --torch or --torch-index"
        "$python" packaging/wheel_needs.py "$arch" "$target" "$work"/wheels/torch-*"cp${target/./}-cp"*.whl \
            "$work/wheels/ascendd-$version"-*.whl >"$work/needs" || exit
        "${fetch[@]}" --find-links "$work/wheels" "${pins[@]}" -r "$work/needs"
        rm -f "$work/needs" "$work/constraints"
    done
fi
cuda=("$work"/wheels/nvidia_* "$work"/wheels/triton-*)
[ "${#cuda[@]}" -eq 0 ] || fail "the wheels hold CUDA (${cuda[0]##*/}); name an index of CPU builds with --torch-index"
own=("$work/wheels/ascendd-$version"-*.whl)
[ "${#own[@]}" -gt 0 ] || fail "there is no wheel of ascendd $version"
kernels="with native CPU kernels"
case "${own[0]}" in
    *-any.whl) kernels="without native CPU kernels, so a CPU computes in torch: they are compiled on a machine of $arch with a C compiler" ;;
esac

list="$(printf '"%s", ' "${pythons[@]}")"
printf '{"version": "%s", "pythons": [%s], "architecture": "%s"}\n' "$version" "${list%, }" "$arch" >"$work/bundle.json"
(cd "$work" && find . -type f ! -name SHA256SUMS -printf '%P\0' | sort -z | xargs -0 sha256sum >SHA256SUMS)
chmod 755 "$work"
tar -czf "$out.tar.gz" --owner=0 --group=0 --transform "s|^\.|$(basename "$out")|" -C "$work" .
mv "$work" "$out"
echo "$out: $(du -sh "$out" | cut -f 1), $(ls "$out/wheels" | wc -l) wheels, $((SECONDS - started)) s; packed: $(du -h "$out.tar.gz" | cut -f 1); $kernels"
