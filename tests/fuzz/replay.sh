#!/bin/sh
# Runs the fuzzers' functions on their inputs, one program per CPU at a time: replay.sh FOLDER.  The inputs are those of
# run.sh: the generated seeds, the earlier findings, and the templates.
if [ "$1" = --one ]; then
    program=$2 folder=${2%/*} name=${2##*/replay_}
    also=
    [ "$name" != template ] || also=tests/engine/data/templates
    files=$(find $(ls -d "$folder/seed/$name" "tests/fuzz/corpus/$name" $also 2>/dev/null) -type f)
    if "$program" $files >"$program.log" 2>&1; then
        echo "passed: $name ($(echo "$files" | wc -w) files)"
    else
        printf '%s\n%s\n' "$(tail -n 40 "$program.log")" "failed: $name"
        exit 1
    fi
    exit 0
fi
folder=$1
"$folder/seeds" "$folder/seed" || exit 1
for program in "$folder"/replay_*; do
    case $program in *.o | *.d | *.log) continue ;; esac
    echo "$program"
done | xargs -P "$(nproc)" -n 1 "$0" --one
