#!/bin/sh
# The long tests: fuzzing by time, crowds of other seeds each time, and every test many times over.  Writes
# evals/results/checks/soak-DATE.txt with the commit it ran on; commit that file.  Nothing that fails stops it: its last
# lines tell what did, and the exit status is 1 then.  SECONDS_EACH sets how long each fuzz target runs, SECONDS_MIXED the
# server's mixed load, SECONDS_CROWD the crowds in each mode and as long a walk over what tests/engine/test_pairs.c
# multiplies, SECONDS_PAIRS the walk over all of it in release mode (some hours, if it is not cut short), TIMES how often
# all tests run in each.  Usage: soak.sh FOLDER, where the programs are.
out=$1 demo=evals/train/models/demo-draft-q8_0.gguf
seconds=${SECONDS_EACH:-600}
result=evals/results/checks/soak-$(date +%Y-%m-%d).txt
notes=$(mktemp -d) || exit 1
trap 'rm -rf "$notes"' EXIT

# part NAME SHOW COMMAND...: what SHOW takes of what COMMAND says, while it says it.  A pipe's status is that of its
# last command, so COMMAND's goes through a file.
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

# build TARGET MAKE-ARGUMENTS...: says what the compiler says only if it fails.
build() {
    make --no-print-directory "$@" >"$notes/build" 2>&1 || { tail -n 20 "$notes/build"; return 1; }
}

# what is shown
fuzzed() { grep -E 'runtime error|ERROR|SUMMARY|^passed|^failed|^please|\*\*\*'; }
tested() { grep -E '^FAIL|ERROR|^failed:|passed, |error:|\*\*\*'; }
paired() { grep -E '^row|rows of|ERROR|FAILED|error:|\*\*\*'; }
crowded() { grep -v '^spillway: warning'; }
last_ten() { tail -n 10; }
last_sixty() { tail -n 60; }

same_bytes() {
    build B=build/long EXTRA=-DLENGTH=600 build/long/release/tests/moe/test_same_bytes &&
        build/long/release/tests/moe/test_same_bytes
}
nodes() {
    "$out/spillway" synth --shape tiny -o build/tiny.gguf --quiet && tests/numa.sh "$out/spillway" build/tiny.gguf ||
        [ $? = 77 ]                             # what it needs is not there
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
    echo "== the server: cancelled, cut off, broken, crowded, and ${SECONDS_MIXED:-600} s of everything at once"
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
        echo "== MODE=$mode, the demo model's drafts in every company, for $seconds_pairs s or all of it"
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
