#!/bin/bash
# Behaves as a vendor's .run package; what it is and its version, its name says. Files beside $FAKE_ROOT make it misbehave:
# `busy` refuses, `fail-KIND` ends half-way, `kill-KIND` kills the installer half-way and goes on alone, until the next
# one is seen to wait for it.
root="$FAKE_ROOT"
name="${0##*/}"
version="${name#*_}"; version="${version%%_*}"; version="${version%.run}"
arch=x86_64
top="$root/usr/local/Ascend"
for word in "$@"; do case "$word" in --install-path=*) top="${word#*=}" ;; esac; done
echo "$name $*" | sed "s|$root||g" >>"$FAKE_CALLS"
case "$name" in
    *-driver_*) kind=driver ;;
    *-firmware_*) kind=firmware ;;
    *-toolkit_*) kind=toolkit ;;
    *-ops_* | *-kernels-*) kind=ops ;;
    *-nnal_*) kind=nnal ;;
esac
half() {
    if [ -e "$root/../fail-$kind" ]; then echo "half-way: failed"; exit 1; fi
    if [ -e "$root/../kill-$kind" ]; then rm "$root/../kill-$kind"; kill -9 "$PPID"; bash "$root/../outlive.sh"; fi
}
if [ "$kind" = driver ] || [ "$kind" = firmware ]; then
    [ ! -e "$root/../busy" ] || { echo "a process holds the device"; exit 1; }
fi
case " $* " in
    *" --uninstall "*)
        case "$kind" in
            driver) rm -rf "$top/driver" "$root/etc/ascend_install.info" ;;
            firmware) rm -rf "$top/firmware" ;;
            toolkit) rm -rf "$top/cann" "$top/cann-$version" ;;
            ops) rm -f "$top/cann-$version/$arch-linux/ascend_ops_install.info" ;;
            nnal) rm -rf "$top/nnal" ;;
        esac
        rmdir "$top" 2>/dev/null
        exit 0 ;;
    *" --full "* | *" --upgrade "* | *" --install "*) ;;
    *) echo "unknown: $*"; exit 1 ;;
esac
mkdir -p "$top"
case "$kind" in
    driver)
        rm -rf "$top/driver/tools"
        mkdir -p "$top/driver"
        printf 'Version=%s\ncompatible_version_fw=[7.0.0,7.9.9]\n' "$version" >"$top/driver/version.info"
        half
        mkdir -p "$top/driver/tools"
        echo tool >"$top/driver/tools/upgrade-tool"
        printf 'UserGroup=HwHiAiUser\nDriver_Install_Path_Param=/usr/local/Ascend\n' >"$root/etc/ascend_install.info"
        exit 2 ;;
    firmware)
        half
        mkdir -p "$top/firmware"
        printf 'Version=%s\n' "$version" >"$top/firmware/version.info" ;;
    toolkit)
        folder="$top/cann-$version/$arch-linux"
        mkdir -p "$folder"
        half
        ln -sfn "cann-$version" "$top/cann"
        printf 'package_name=Ascend-cann-toolkit\nversion=%s\narch=%s\n' "$version" "$arch" >"$folder/ascend_toolkit_install.info"
        printf 'export ASCEND_HOME_PATH=/usr/local/Ascend/cann-%s\n' "$version" >"$top/cann-$version/set_env.sh" ;;
    ops)
        half
        folder="$top/cann-$version/$arch-linux"
        [ -e "$folder/ascend_toolkit_install.info" ] || { echo "no toolkit $version"; exit 1; }
        printf 'package_name=Ascend-cann-910b-ops\nversion=%s\n' "$version" >"$folder/ascend_ops_install.info" ;;
    nnal)
        half
        mkdir -p "$top/nnal/atb/latest"
        printf 'Ascend-cann-atb : %s\n' "$version" >"$top/nnal/atb/latest/version.info"
        printf 'export ATB_HOME_PATH=/usr/local/Ascend/nnal/atb/latest\n' >"$top/nnal/atb/set_env.sh" ;;
esac
