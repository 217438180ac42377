#!/bin/sh
# The long tests: fuzzing by time, and every test many times over.  Writes evals/results/soak-DATE.txt with
# the commit it ran on; commit that file.  SECONDS_EACH sets how long each fuzz target runs.
set -e
seconds=${SECONDS_EACH:-600}
result=evals/results/soak-$(date +%Y-%m-%d).txt
{
    echo "commit $(git rev-parse --short HEAD), $(date -u +%Y-%m-%dT%H:%MZ), $(nproc) CPUs"
    echo "== fuzzing, $seconds s each"
    make --no-print-directory fuzz FUZZ="-max_total_time=$seconds" 2>&1 | grep -E 'stat::|^DONE|Done|ERROR|passed|failed' || true
    for mode in release asan tsan; do
        echo "== MODE=$mode, tests ten times"
        for i in 1 2 3 4 5 6 7 8 9 10; do
            make --no-print-directory MODE=$mode test 2>&1 | tail -n 1
        done
    done
} | tee "$result"
