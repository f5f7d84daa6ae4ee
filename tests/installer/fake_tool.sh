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
