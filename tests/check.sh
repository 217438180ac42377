#!/bin/sh
# Fails if a folder includes, or refers to a symbol of, a folder it may not use; if library code prints,
# exits or reads the environment; if anything but fma and sqrt of libm is used; if a header does not
# compile alone.  Usage: check.sh BUILD_DIR "folder:uses ..." ...
out=$1; shift; bad=0
complain() { echo "check: $1"; bad=1; }
prefix() { case $1 in kernels) echo kn_;; offload) echo off_;; moe) echo moe_;; speculative) echo spec_;; engine) echo eng_;; esac; }
all="kernels offload moe speculative engine"

for spec in "$@"; do
    folder=${spec%%:*}; uses=" ${spec#*:} "
    for other in $all; do
        [ "$other" = "$folder" ] && continue
        grep -rnE "#include \"$other/.*internal\.h\"" "$folder" && complain "$folder includes $other's internals"
        case "$uses" in *" $other "*) continue;; esac
        grep -rnE "#include \"$other/" "$folder" && complain "$folder may not include $other"
        nm -u "$out/lib$folder.a" | grep -E " U $(prefix "$other")" && complain "$folder may not use $other"
    done
    nm -u "$out/lib$folder.a" | awk '$1 == "U" {print $2}' | sort -u | grep -xE \
        '(a?(sin|cos|tan)h?|atan2|sincos|exp|exp2|exp10|expm1|log|log2|log10|log1p|pow|cbrt|hypot|erfc?|[lt]gamma|fmod|remainder|ldexp|scalbn)[fl]?' \
        && complain "$folder uses library mathematics (only fma and sqrt are allowed)"
done
grep -nE '\b(exit|abort|printf) *\(' -r kernels offload moe speculative --include='*.c' --include='*.cu' &&
    complain "library code prints or exits"
grep -nE '\b(exit|_exit|abort) *\(' -r engine --include='*.c' | grep -v '^engine/cli/main\.c:' &&
    complain "only main.c exits"
grep -nE '\bgetenv *\(' -r $all --include='*.c' --include='*.cu' | grep -v '^engine/cli/config\.c:' &&
    complain "only engine/cli/config.c reads the environment"
for h in $(find $all -name '*.h'); do
    case $h in kernels/cpu/simd*.h|kernels/cuda/*) continue;; esac
    echo "#include \"$h\"" | ${CC:-cc} -std=c11 -D_GNU_SOURCE -I. -fsyntax-only -x c - || complain "$h does not compile alone"
done
for f in $(git ls-files "*.c" "*.h" "*.cu" 2>/dev/null); do
    [ "$(wc -l < "$f")" -le 1000 ] || complain "$f has more than 1000 lines"
done
[ $bad = 0 ] && echo "check: ok" || echo "check: failed"
exit $bad
