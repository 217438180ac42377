#!/bin/sh
# Fails if a release build lacks one of its protections (HARDEN in the Makefile).  Run by `make check`.
# Usage: hardened.sh PROGRAM ARCHIVE...
program=$1; shift; bad=0
complain() { echo "hardened: $1"; bad=1; }
command -v readelf >/dev/null || { echo "hardened: readelf is missing: the program is not checked"; exit 0; }

has() { readelf -W "$1" "$program" 2>/dev/null | grep -qE "$2"; }
has -h 'Type: +DYN' && has -d 'FLAGS_1.* PIE' || complain "the program is no position-independent executable"
has -l 'GNU_RELRO' && has -d 'BIND_NOW' || complain "the program's tables of functions stay writable (no full RELRO)"
has -l 'GNU_STACK.* RW ' || complain "the program's stack is executable"
has -s ' __stack_chk_fail' || complain "no function of the program guards its stack"
for f in __memcpy_chk __snprintf_chk; do
    has -s " $f" || complain "no bounds of $f are checked (FORTIFY)"
done
# Every object of C has the note for control-flow protection.  The program's own note needs it from all linked libraries,
# and CUDA's have none.
for archive in "$@"; do
    readelf -n "$archive" 2>/dev/null | awk -v archive="${archive##*/}" '
        function tell() { if (name != "" && name !~ /\.cu\.o/ && !ok) { print "hardened: " archive ": " name " has no control-flow protection"; bad = 1 } }
        /^File: / { tell(); name = $0; sub(/.*\(/, "", name); sub(/\).*/, "", name); ok = 0 }
        /IBT, SHSTK/ { ok = 1 }
        END { tell(); exit bad }' || bad=1
done
[ $bad = 0 ] && echo "hardened: ok"
exit $bad
