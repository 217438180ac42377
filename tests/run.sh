#!/bin/sh
# Runs the test programs named as arguments, each from the root of the tree; ends with one line of counts.
passed=0 failed=0 broken=
for t in "$@"; do
    log=$t.log
    "$t" >"$log" 2>&1; status=$?
    ok=$(grep -c '^\[       OK \]' "$log"); skip=$(grep -c '^\[  SKIPPED \] [a-z]' "$log")
    bad=$(sed -n 's/^\[  FAILED  \] \([0-9]*\) test(s).*/\1/p' "$log")
    passed=$((passed + ok))
    if [ $status != 0 ]; then
        [ -n "$bad" ] || bad=1
        failed=$((failed + bad)); broken="$broken $t"
        echo "FAIL $t"; tail -n 60 "$log"
    else
        echo "ok   $t ($ok tests$([ "$skip" = 0 ] || echo ", $((skip / 2)) skipped"))"
        grep '^skipped: ' "$log" | sort -u | sed 's/^/     /'
    fi
done
[ -z "$broken" ] || echo "failed:$broken"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
