#!/bin/sh
# Makes the Debian packages spillway and spillway-dbgsym of a built program: build.sh PROGRAM FOLDER.  Run by `make deb`.
# debhelper works in FOLDER/spillway, so nothing is written into the sources.
#
# DEBFULLNAME and DEBEMAIL name the maintainer, as for Debian's own tools; DEB_VERSION another version than ENG_VERSION.
set -eu
TREE=$(cd "$(dirname "$0")/../.." && pwd)
PROGRAM=$(realpath "$1")
export TREE PROGRAM
rm -rf "$2"
mkdir -p "$2/spillway"
cd "$2/spillway"
cp -r "$TREE/configs/debian" debian
date=$(git -C "$TREE" -c safe.directory='*' log -1 --format=%cD 2>/dev/null || date -R)
# 0.1.0-dev is older than 0.1.0: 0.1.0~dev
version=${DEB_VERSION:-$(sed -n 's/^#define ENG_VERSION "\(.*\)"/\1/p' "$TREE/engine/engine.h" | tr - '~')}
maintainer="${DEBFULLNAME:-Spillway} <${DEBEMAIL:-spillway@packages.invalid}>"
sed -i "s/@MAINTAINER@/$maintainer/" debian/control
printf 'spillway (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- %s  %s\n' \
    "$version" "$maintainer" "$date" >debian/changelog
dpkg-buildpackage --build=binary --no-sign --no-pre-clean
