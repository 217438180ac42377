#!/bin/sh
# Runs every fuzzer in a folder, one per CPU at a time: run.sh FOLDER FLAGS...  (-runs=20000, or -max_total_time=600 to
# search).  Inputs are the generated seeds and the earlier findings in tests/fuzz/corpus/NAME; a new finding is written to
# FOLDER: move it to the corpus once it is fixed.
if [ "$1" = --one ]; then
    fuzzer=$2; shift 2
    folder=${fuzzer%/*} name=${fuzzer##*/fuzz_}
    grown=$folder/grown/$name
    mkdir -p "$grown"
    also=
    [ "$name" != template ] || also=tests/engine/data/templates
    few=                                        # a schema takes some ms to compile
    case "$name $*" in
    "schema -runs=20000") few=-runs=2000 ;;
    "request -runs=20000") few=-runs=5000 ;;
    "http -runs=20000") few=-runs=3000 ;;
    "model -runs=20000") few=-runs=8000 ;;
    esac
    if "$fuzzer" -seed=1 -max_len=65536 -rss_limit_mb=2048 -timeout=20 -artifact_prefix="$folder/$name-" \
        "$@" $few "$grown" $(ls -d "$folder/seed/$name" "tests/fuzz/corpus/$name" $also 2>/dev/null) \
        >"$fuzzer.log" 2>&1; then
        echo "passed: fuzz_$name ($(sed -n 's/^Done \([0-9]*\) runs.*/\1/p' "$fuzzer.log") runs)"
    else
        printf '%s\n%s\n' "$(tail -n 40 "$fuzzer.log")" "failed: fuzz_$name"
        exit 1
    fi
    exit 0
fi
folder=$1; shift
"$folder/seeds" "$folder/seed" || exit 1
for fuzzer in "$folder"/fuzz_*; do
    case $fuzzer in *.o | *.d | *.log) continue ;; esac
    [ ! -x "$fuzzer" ] || [ -d "$fuzzer" ] || echo "$fuzzer"
done | xargs -P "$(nproc)" -I FUZZER "$0" --one FUZZER "$@"
