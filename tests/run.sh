#!/bin/sh
# Runs the test programs named as arguments, one per CPU at a time, from the root of the tree; prints the result of
# each as soon as it ends, and one last line of counts.
#
# A program that does not end within TEST_LIMIT seconds (600 if unset) is killed with its children, and is reported as
# failed with the name of the test that it was in. The limit is far above what any test needs on a slow machine: it
# ends tests that hang, and is no statement about speed.
limit=${TEST_LIMIT:-600}
if [ "$1" = --one ]; then
    t=$2 log=$2.log
    began=$(date +%s)
    # timeout has a process group of its own, which Ctrl-C does not reach; so it is passed on
    env --default-signal=INT,QUIT timeout --kill-after=10 "$limit" "$t" >"$log" 2>&1 &
    trap 'kill $!; exit 130' INT TERM
    wait $!; status=$?
    if [ $(($(date +%s) - began)) -ge "$limit" ]; then
        running=$(sed -n 's/^\[ RUN      \] //p' "$log" | tail -n 1)
        echo "did not end within $limit seconds${running:+, in $running}" >>"$log"
    fi
    ok=$(grep -c '^\[       OK \]' "$log"); skip=$(grep -c '^\[  SKIPPED \] [a-z]' "$log")
    bad=$(sed -n 's/^\[  FAILED  \] \([0-9]*\) test(s).*/\1/p' "$log")
    if [ $status != 0 ]; then
        echo "$t $ok ${bad:-1}" >"$t.count"
        printf 'FAIL %s\n%s\n' "$t" "$(grep -v '^\[ RUN  \|^\[       OK \]\|^spillway: warning' "$log" | tail -n 40)"
    else
        echo "$t $ok 0" >"$t.count"
        note=$(grep '^skipped: ' "$log" | sort -u | sed 's/^/\n     /')
        printf '%s%s\n' "ok   $t ($ok tests$([ "$skip" = 0 ] || echo ", $((skip / 2)) skipped"))" "$note"
    fi
    exit 0
fi
for t in "$@"; do rm -f "$t.count"; done
printf '%s\n' "$@" | xargs -P "$(nproc)" -n 1 "$0" --one
for t in "$@"; do cat "$t.count" 2>/dev/null || echo "$t 0 1"; done | awk '
    { passed += $2; failed += $3; if ($3) broken = broken " " $1 }
    END { if (broken) print "failed:" broken
          print passed " passed, " failed + 0 " failed"; exit failed > 0 }'
