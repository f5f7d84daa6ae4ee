#!/bin/bash
# Stands in for the tools of a host whose root is $FAKE_ROOT; which one, its name says.
root="$FAKE_ROOT"
etc="$root/etc"
drop() { grep -v "^$2:" "$etc/$1" >"$etc/.$1"; cat "$etc/.$1" >"$etc/$1"; rm "$etc/.$1"; }
has() { grep -q "^$2:" "$etc/$1"; }
last="${!#}"
echo "${0##*/} $*" >>"$FAKE_CALLS"
case "${0##*/}" in
    groupadd) has group "$last" || echo "$last:x:1001:" >>"$etc/group" ;;
    useradd)
        has passwd "$last" && exit 9
        mkdir -p "$root/home/$last"
        echo "$last:x:1001:1001::/home/$last:/bin/sh" >>"$etc/passwd" ;;
    userdel)
        has passwd "$last" || exit 6
        drop passwd "$last"
        has group "$last" && drop group "$last"
        [ "$1" = --remove ] && rm -rf "${root:?}/home/$last"
        exit 0 ;;
    groupdel) has group "$last" || exit 6; drop group "$last" ;;
    usermod) grep -q "^$3:.*$4" "$etc/group" || sed -i "s/^$3:.*/&$4/" "$etc/group" ;;
    systemd-sysusers)
        has passwd ascendd || { echo "ascendd:x:998:998::/:/" >>"$etc/passwd"; echo "ascendd:x:998:" >>"$etc/group"; } ;;
    systemd-tmpfiles) sed -n 's/^d \([^ ]*\) .*/\1/p' "$etc/tmpfiles.d/ascendd.conf" | while read -r d; do mkdir -p "$root$d"; done ;;
    systemctl) [ "$1" != reboot ] || echo boot-2 >"$root/proc/sys/kernel/random/boot_id" ;;
    dpkg-query | rpm | dpkg | apt-get | dnf)
        # What a package brings is one command, named in it; the list of what is installed is one of names.
        list="$root/var/lib/fake-packages"
        touch "$list"
        case "${0##*/} $1" in
            "dpkg-query --show") shift 2; for name in "$@"; do grep -q "^$name " "$list" && echo "$name installed"; done; exit 1 ;;
            "rpm --query") shift 2; for name in "$@"; do grep -q "^$name " "$list" && echo "$name" || echo "package $name is not installed"; done; exit 1 ;;
            "dpkg --configure") ;;
            "dpkg --purge" | "rpm --erase")
                shift
                [ ! -e "$root/../needs-packages" ] || exit 1
                for name in "$@"; do rm "$root/usr/bin/$(sed -n "s/^$name //p" "$list")"; sed -i "/^$name /d" "$list"; done
                [ -s "$list" ] || rm "$list" ;;
            "apt-get install" | "dnf install")
                for path in "$@"; do
                    case "$path" in *.deb) name="${path##*/}"; name="${name%%_*}" ;; *.rpm) name="${path##*/}"; name="${name%-*-*}" ;; *) continue ;; esac
                    [ ! -e "$root/../fail-os-packages" ] || { echo "E: half-way: failed"; exit 100; }
                    command="$(cat "$path")"
                    cp "$0" "$root/usr/bin/$command"
                    echo "$name $command" >>"$list"
                    if [ -e "$root/../kill-os-packages" ]; then rm "$root/../kill-os-packages"; kill -9 "$PPID"; bash "$root/../outlive.sh"; fi
                done ;;
            *) exit 1 ;;
        esac ;;
    npu-smi) cat "$FAKE_NPU_SMI" ;;
    python3.11 | python)
        case "$*" in
            "-I -c"*) echo 3.11 ;;
            "-m venv --clear "*) rm -rf "$4"; mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
            *"pip check") ;;
            *"pip install "*"ascendd=="*) cp "$0" "${0%/*}/ascendd" ;;
            *"pip install "*) cp "$last" "${0%/*}/../installed" ;;
            *) exit 1 ;;
        esac ;;
    ascendd)
        case "$*" in
            --version) echo "ascendd 0.1.0" ;;
            *) [ ! -e "$root/../doctor-fails" ] || exit 2; exit 1 ;;
        esac ;;
    *) exit 127 ;;
esac
