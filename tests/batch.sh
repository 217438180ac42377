#!/bin/sh
# A batch of 1,000 lines, killed with SIGKILL at random moments and begun again until it is done: every custom_id
# must have its answer exactly once, with the bytes of a job that nothing happened to.
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
(run "$folder/whole") || { echo "batch: the job that nothing happens to fails"; exit 1; }
whole_ms=$((($(date +%s%N) - start) / 1000000))
sort "$folder/whole" >"$folder/want"
echo "batch: $lines lines in $whole_ms ms when nothing happens"

# moments up to what a job takes to load and get through a few groups of lines
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
        [ $status = 0 ] || [ $status = 137 ] || { echo "batch: a job ends with status $status by itself"; exit 1; }
        torn=$(tail -c 1 "$folder/out" 2>/dev/null | od -An -c | tr -d ' \n')
        [ -z "$torn" ] || [ "$torn" = '\n' ] || echo "batch: a torn line after kill $killed"
    done
    jobs=$((jobs + 1))
    sort "$folder/out" >"$folder/have"
    cmp "$folder/want" "$folder/have" || { echo "batch: after $killed kills the lines are not the same"; exit 1; }
    [ ! -s "$folder/out.errors" ] || { echo "batch: there are errors"; exit 1; }
done
echo "batch: $killed kills in $jobs jobs ($starts starts): $lines custom_ids exactly once in each, all bytes the same"
