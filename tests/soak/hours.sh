#!/bin/sh
# The server's mixed load (tests/soak/serve.c) for many hours, in as many runs as needed: each call continues until HOURS
# are done in all, and prints what all runs did. A run that was cut off counts up to its last logged minute; only hours
# that ran are said. Each run is one server process from its start to its end.
# Usage: hours.sh FOLDER STATE HOURS [OPTION OF serve]...   FOLDER has the built programs; STATE is the log that is
# continued; HOURS 0 prints the report only. MODEL sets the model. Exit status 1: a run found something.
folder=$1 state=$2 hours=$3 model=${MODEL:-evals/train/models/demo-target-q8_0.gguf}
[ $# -ge 3 ] || { echo "usage: hours.sh FOLDER STATE HOURS [OPTION OF serve]..."; exit 2; }
shift 3

# Lines of STATE: "run DATE COMMIT PROGRAM" begins a run, "t ..." are its sums so far (serve.c), "end STATUS" ends it.
seconds_done() { awk '$1 == "run" {s += t; t = 0} $1 == "t" {t = $2} END {printf "%d", s + t}' "$state"; }

report() {
    awk -v model="${model##*/}" '
        function flush() {
            if (!run) return
            printf "| %s | %s | %.2f | %d | %d | %d | %d | %d | %d to %d | %d to %d | %s |\n", date, commit, t[2] / 3600, \
                t[3], t[4], t[5], t[6], t[8], early, t[9], files, t[10], ended == "" ? "cut off" : "status " ended
            for (i = 2; i <= 8; i++) sum[i] += t[i]
            bad += ended != "" && ended != 0
            delete t; early = files = 0; ended = ""; run = 0
        }
        BEGIN {
            print "| begun | commit | hours | requests | texts compared | left | nonsense | failures | anonymous KiB, from minute 6 | files | end |"
            print "|---|---|---|---|---|---|---|---|---|---|---|"
        }
        $1 == "run" { flush(); run = 1; date = $2; commit = $3; n++ }
        $1 == "t" { for (i = 2; i <= NF; i++) t[i] = $i; if (!early && $2 >= 360) { early = $9; files = $10 } }
        $1 == "end" { ended = $2 }
        END {
            flush()
            printf "\n%.2f hours in %d runs with %s: %d requests, %d texts compared with those alone, %d clients left, ", \
                sum[2] / 3600, n, model, sum[3], sum[4], sum[5]
            printf "%d of nonsense, %d told to come again, %d failures, %d runs with an error status\n", \
                sum[6], sum[7], sum[8], bad
            exit sum[8] + bad > 0
        }' "$state"
}

[ -f "$state" ] || : >"$state" || exit 2
left=$(awk -v h="$hours" -v done="$(seconds_done)" 'BEGIN {printf "%d", h * 3600 - done}')
if [ "$left" -gt 0 ]; then
    commit=$(git rev-parse --short HEAD)$(git diff --quiet HEAD || echo +)
    echo "run $(date -u +%Y-%m-%dT%H:%M:%SZ) $commit $(sha256sum "$folder/spillway" | cut -c1-16)" >>"$state"
    "$folder/tests/soak/serve" --seconds "$left" "$@" --log "$state" "$folder/spillway" "$model" mixed &
    trap 'kill $! 2>/dev/null; exit 130' INT TERM HUP
    wait $!
    echo "end $?" >>"$state"
    trap - INT TERM HUP
fi
report
