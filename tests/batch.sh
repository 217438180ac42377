#!/bin/sh
# A batch of 1,000 lines, killed with SIGKILL at random times and restarted until it is done: every custom_id must have
# its answer exactly once, with the same bytes as in an uninterrupted job.
# Usage: batch.sh PROGRAM MODEL [KILLS] [LINES]
program=$1 model=$2 kills=${3:-50} lines=${4:-1000}
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
awk -v n="$lines" 'BEGIN { for (i = 0; i < n; i++) {
    printf "{\"custom_id\":\"request-%d\",\"method\":\"POST\",", i
    if (i % 2) printf "\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"Question %d:\",\"max_tokens\":%d}}\n", i, 8 + i % 57
    else printf "\"url\":\"/v1/chat/completions\",\"body\":{\"messages\":[{\"role\":\"user\",\"content\":\"How many eggs are in %d dozen?\"}],\"max_tokens\":%d}}\n", i, 8 + i % 41
} }' >"$folder/in"
run() { exec "$program" batch -m "$model" "$folder/in" -o "$1" --parallel 8 --ctx-size 512 --quiet; }

start=$(date +%s%N)
(run "$folder/whole") || { echo "batch: the uninterrupted job fails"; exit 1; }
whole_ms=$((($(date +%s%N) - start) / 1000000))
sort "$folder/whole" >"$folder/want"
echo "batch: $lines lines in $whole_ms ms without a kill"

# kill times go up to the time in which a job loads the model and completes a few groups of lines
killed=0 starts=0 jobs=0 random=1
while [ $killed -lt "$kills" ]; do
    rm -f "$folder/out" "$folder/out.errors"
    status=1
    while [ $status != 0 ]; do
        run "$folder/out" & pid=$!
        starts=$((starts + 1))
        if [ $killed -lt "$kills" ]; then
            random=$(((random * 1103515245 + 12345) % 2147483648))
            sleep "$(awk -v r="$random" -v ms="$whole_ms" 'BEGIN { print 0.05 + r / 2147483648 * (ms < 6000 ? ms : 6000) / 1000 }')"
            kill -9 $pid 2>/dev/null && killed=$((killed + 1))
        fi
        wait $pid 2>/dev/null; status=$?
        [ $status = 0 ] || [ $status = 137 ] || { echo "batch: a job ends with status $status without a kill"; exit 1; }
        torn=$(tail -c 1 "$folder/out" 2>/dev/null | od -An -c | tr -d ' \n')
        [ -z "$torn" ] || [ "$torn" = '\n' ] || echo "batch: an incomplete line after kill $killed"
    done
    jobs=$((jobs + 1))
    sort "$folder/out" >"$folder/have"
    cmp "$folder/want" "$folder/have" || { echo "batch: after $killed kills the lines differ"; exit 1; }
    [ ! -s "$folder/out.errors" ] || { echo "batch: the job has failed lines"; exit 1; }
done
echo "batch: $killed kills in $jobs jobs ($starts starts): each of $lines custom_ids once in each, bytes equal"
