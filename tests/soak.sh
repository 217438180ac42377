#!/bin/sh
# The long tests: fuzzing by time, crowds of other seeds each time, and every test many times over.  Writes
# evals/results/soak-DATE.txt with the commit it ran on; commit that file.  SECONDS_EACH sets how long each fuzz
# target runs, SECONDS_MIXED the server's mixed load, SECONDS_CROWD the crowds in each mode, TIMES how often all tests
# run in each.  Usage: soak.sh FOLDER, where the programs are.
set -e
out=$1 demo=evals/train/models/demo-draft-q8_0.gguf
seconds=${SECONDS_EACH:-600}
result=evals/results/soak-$(date +%Y-%m-%d).txt
{
    echo "commit $(git rev-parse --short HEAD), $(date -u +%Y-%m-%dT%H:%MZ), $(nproc) CPUs"
    echo "== fuzzing, $seconds s each"
    make --no-print-directory fuzz FUZZ="-max_total_time=$seconds" 2>&1 |
        grep -E 'runtime error|ERROR|SUMMARY|^passed|^failed' || true
    echo "== the same bytes over 600 tokens, in chunks of up to 512"
    make --no-print-directory B=build/long EXTRA=-DLENGTH=600 build/long/release/tests/moe/test_same_bytes \
        >build-long.log 2>&1
    build/long/release/tests/moe/test_same_bytes 2>&1 | tail -n 1
    rm -f build-long.log
    echo "== the server: cancelled, cut off, broken, crowded, and ${SECONDS_MIXED:-600} s of everything at once"
    "$out/tests/soak/serve" --seconds "${SECONDS_MIXED:-600}" "$out/spillway" "$demo" 2>&1 || true
    echo "== layouts of NUMA nodes, in virtual machines"
    "$out/spillway" synth --shape tiny -o build/tiny.gguf --quiet
    tests/numa.sh "$out/spillway" build/tiny.gguf 2>&1 | tail -n 60 || true
    echo "== a batch killed fifty times"
    tests/batch.sh "$out/spillway" "$demo" 50 1000 2>&1 | tail -n 10 || true
    for mode in release asan tsan; do
        echo "== MODE=$mode, crowds for ${SECONDS_CROWD:-1200} s"
        make --no-print-directory MODE=$mode "build/$mode/tests/soak/crowd" >build-crowd.log 2>&1
        "build/$mode/tests/soak/crowd" --seed "$(date +%s)" --seconds "${SECONDS_CROWD:-1200}" 2>&1 |
            grep -v '^spillway: warning' || true
        rm -f build-crowd.log
        echo "== MODE=$mode, all tests, ${TIMES:-10} times"
        for i in $(seq "${TIMES:-10}"); do
            make --no-print-directory MODE=$mode test 2>&1 | grep -E '^FAIL|ERROR|^failed:|passed, ' || true
        done
    done
} | tee "$result"
