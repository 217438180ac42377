#!/bin/sh
# Builds this tree and runs all tests in a bare Debian or Ubuntu of another release, with its compiler, in a folder
# build/bare/SUITE. Run by hand, as root. CI=true makes that compiler's warnings errors.
#
#   tests/bare.sh SUITE [MIRROR]          SUITE: trixie, bookworm, noble ...
#
# MIRROR is the address of a package mirror; without it, the first one of this machine's apt sources is used. The
# system is made once, by mmdebstrap or debootstrap, and is used again in later runs; to remove it, delete the folder.
# It has only the packages that `make` and `make test` install themselves, and `make`. The mounts are in a mount
# namespace of their own, so none is left when the script ends, however it ends.
set -eu
[ $# -ge 1 ] || { sed -n 's/^# \{0,1\}//p' "$0"; exit 2; }
cd "$(dirname "$0")/.."
suite=$1 root=$PWD/build/bare/$1
fail() { echo "bare: $1" >&2; exit 1; }
[ "$(id -u)" = 0 ] || fail "this needs root: it makes a system and changes into it with chroot"
mirror=${2:-$(sed -n 's/^URIs: *\([^ ]*\).*/\1/p; s/^deb  *\(\[[^]]*\] *\)\{0,1\}\([^ ]*\).*/\2/p' \
              /etc/apt/sources.list.d/*.sources /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null | head -n 1)}
[ -n "$mirror" ] || fail "this machine has no apt sources: name a mirror as second argument"

if [ ! -e "$root/bare-is-complete" ]; then
    echo "bare: making a minimal $suite in $root, from $mirror" >&2
    rm -rf "$root"
    mkdir -p "$root"
    if command -v mmdebstrap >/dev/null; then
        mmdebstrap --variant=apt --mode=root "$suite" "$root" "$mirror"
    elif command -v debootstrap >/dev/null; then
        debootstrap --variant=minbase "$suite" "$root" "$mirror"
    else
        fail "install mmdebstrap or debootstrap"
    fi >&2
    touch "$root/bare-is-complete"
fi
cp -L /etc/resolv.conf "$root/etc/resolv.conf"

echo "bare: copying the tree" >&2
mkdir -p "$root/tree"
find "$root/tree" -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} +
git ls-files -z --cached --others --exclude-standard | tar -c --null --ignore-failed-read -T - | tar -x -C "$root/tree"

exec unshare --mount --pid --fork --kill-child sh -eu -c '
    mount -t proc proc "$1/proc"
    mount --rbind /sys "$1/sys"
    mount --rbind /dev "$1/dev"
    mount -t tmpfs tmpfs "$1/tmp"
    exec chroot "$1" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
        DEBIAN_FRONTEND=noninteractive CI="$2" sh -eu -c "
        cd /tree
        command -v make >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends make; } >/dev/null
        make -j\$(nproc)
        . /etc/os-release
        echo \"bare: \$PRETTY_NAME, \$(cc --version | head -n 1)\"
        make test"
' sh "$root" "${CI:-}"
