#!/bin/sh
# The long tests: fuzzing for a time, random sessions (crowd) with new seeds, and every test many times. Writes
# evals/results/checks/soak-DATE.txt with the tested commit; commit that file. A failure does not stop it: the last
# lines list the failed parts, and the exit status is then 1. SECONDS_EACH sets the time of each fuzz target,
# SECONDS_MIXED of the server's mixed load, SECONDS_CROWD of the crowds in each mode and, in asan and tsan mode, of the
# combinations in tests/engine/test_pairs.c, SECONDS_PAIRS of all combinations in release mode (hours if not limited), TIMES
# the number of runs of all tests in each mode.  Usage: soak.sh FOLDER, with the built programs in FOLDER.
out=$1 demo=evals/train/models/demo-draft-q8_0.gguf
seconds=${SECONDS_EACH:-600}
result=evals/results/checks/soak-$(date +%Y-%m-%d).txt
notes=$(mktemp -d) || exit 1
trap 'rm -rf "$notes"' EXIT

# part NAME SHOW COMMAND...: runs COMMAND with its output filtered by SHOW. A pipe's status is that of its
# last command, so COMMAND's status goes through a file.
part() {
    name=$1 show=$2
    shift 2
    echo 1 >"$notes/status"
    { "$@" 2>&1; echo $? >"$notes/status"; } | "$show"
    status=$(cat "$notes/status")
    echo "$name" >>"$notes/parts"
    [ "$status" != 0 ] || return
    echo "FAILED: $name (status $status)"
    echo "$name" >>"$notes/failed"
}

# build TARGET MAKE-ARGUMENTS...: prints the compiler's output only if it fails.
build() {
    make --no-print-directory "$@" >"$notes/build" 2>&1 || { tail -n 20 "$notes/build"; return 1; }
}

# filters of output
fuzzed() { grep -E 'runtime error|ERROR|SUMMARY|^passed|^failed|^please|\*\*\*'; }
tested() { grep -E '^FAIL|ERROR|^failed:|passed, |error:|\*\*\*'; }
paired() { grep -E '^row|rows of|ERROR|FAILED|error:|\*\*\*'; }
crowded() { grep -v '^spillway: warning'; }
last_ten() { tail -n 10; }
last_sixty() { tail -n 60; }

same_bytes() {
    build B=build/long EXTRA=-DLENGTH=600 build/long/release/tests/moe/pass/test_same_bytes &&
        build/long/release/tests/moe/pass/test_same_bytes
}
nodes() {
    "$out/spillway" synth --shape tiny -o build/tiny.gguf --quiet && tests/numa.sh "$out/spillway" build/tiny.gguf ||
        [ $? = 77 ]                             # skipped: a needed program is missing
}
crowds() {
    build MODE="$1" "build/$1/tests/soak/crowd" &&
        "build/$1/tests/soak/crowd" --seed "$(date +%s)" --seconds "${SECONDS_CROWD:-1200}"
}

pairs() {
    build MODE="$1" "build/$1/tests/engine/test_pairs" &&
        "build/$1/tests/engine/test_pairs" --from "$(date +%s)" --seconds "$2"
}

everything() {
    echo "commit $(git rev-parse --short HEAD), $(date -u +%Y-%m-%dT%H:%MZ), $(nproc) CPUs"
    echo "== fuzzing, $seconds s each"
    part fuzzing fuzzed make --no-print-directory fuzz FUZZ="-max_total_time=$seconds"
    echo "== the same bytes over 600 tokens, in chunks of up to 512"
    part "the same bytes" last_ten same_bytes
    echo "== the server: cancelled, cut off, malformed, crowded, and ${SECONDS_MIXED:-600} s of mixed load"
    part "the server" cat "$out/tests/soak/serve" --seconds "${SECONDS_MIXED:-600}" "$out/spillway" "$demo"
    echo "== layouts of NUMA nodes, in virtual machines"
    part "layouts of nodes" last_sixty nodes
    echo "== a batch killed fifty times"
    part "the batch" last_ten tests/batch.sh "$out/spillway" "$demo" 50 1000
    for mode in release asan tsan; do
        echo "== MODE=$mode, crowds for ${SECONDS_CROWD:-1200} s"
        part "crowds with MODE=$mode" crowded crowds "$mode"
        seconds_pairs=${SECONDS_CROWD:-1200}
        [ $mode != release ] || seconds_pairs=${SECONDS_PAIRS:-86400}
        echo "== MODE=$mode, the demo model's drafts in every combination, for $seconds_pairs s or until all are done"
        part "the demo model with MODE=$mode" paired pairs "$mode" "$seconds_pairs"
        echo "== MODE=$mode, all tests, ${TIMES:-10} times"
        for i in $(seq "${TIMES:-10}"); do
            part "tests with MODE=$mode, time $i" tested make --no-print-directory MODE="$mode" test
        done
    done
    [ -s "$notes/failed" ] || { echo "soak: nothing found"; return; }
    sed 's/^/failed: /' "$notes/failed"
    echo "soak: $(wc -l <"$notes/failed") of $(wc -l <"$notes/parts") parts failed"
}

everything | tee "$result"
[ ! -s "$notes/failed" ]
