#!/bin/sh
# Installs the Debian packages named as arguments that are missing, and prints their names first. Without dpkg it
# does nothing: the compiler reports missing libraries. --known: leaves out those that the system's lists do not have.
known=
[ "${1-}" = --known ] && known=yes && shift
command -v dpkg-query >/dev/null 2>&1 || exit 0
missing=
for p in "$@"; do
    dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null | grep -q '^installed$' || missing="$missing $p"
done
[ -z "$missing" ] && exit 0
as_root=
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null 2>&1 || { echo "please install as root:$missing" >&2; exit 1; }
    as_root=sudo
fi
echo "installing$missing (apt-get${as_root:+, with sudo})" >&2
$as_root apt-get update -qq >&2 || exit 1
if [ -n "$known" ]; then
    wanted=$missing missing=
    for p in $wanted; do
        if apt-cache show "$p" >/dev/null 2>&1; then missing="$missing $p"; fi
    done
    [ -n "$missing" ] || exit 1
fi
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >&2
