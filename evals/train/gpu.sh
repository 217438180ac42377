#!/bin/sh
# Trains the large demo target and its drafters on one GPU, in pieces of at most ten minutes.
#
#   gpu.sh (target|drafters|measure|smoke) WORK OUT
#
# WORK contains corpus.ids, held.ids, prompts.jsonl and vocab.json (README.md, "The demo") and, for
# measure, the prompt files. OUT is the folder of checkpoints: each piece reads those of the piece above it.
# A stopped piece continues with the same command. PYTHON names the interpreter; it needs torch,
# numpy, regex and gguf.
#
#   piece     minutes  writes to OUT
#   target    9        large-q8_0.gguf.aa ab ac (15 MB each; cat joins them), large.csv
#   drafters  9        draft.pt boost.pt eagle.pt and their .csv
#   measure   3        acceptance.csv
#   smoke     1        all pieces with tiny shapes and a few steps: a test on a CPU
#
# Afterwards, on any machine: `spillway quantize large-q8_0.gguf -o large-q4_k.gguf --format q4_k`, and export.py for
# the drafters, the EAGLE head last, with the target file that will be served.
set -eu
[ $# = 3 ] || { sed -n 's/^# \{0,1\}//p' "$0"; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
piece=$1 work=$2 out=$3 python=${PYTHON:-python3}
scratch=${SCRATCH:-/tmp/spillway-train}
mkdir -p "$out" "$scratch"
model=$scratch/large-q8_0.gguf
run() { script=$1; shift; "$python" "$here/$script.py" "$@"; }

# The numbers of steps fit the minutes at 0.5 M tokens/s of training and 50 k tokens/s of sampling.
if [ "$piece" = smoke ]; then
    large=tiny-target draft=tiny-draft eagle=tiny-eagle steps=40 count=48 rows=32 batch=2048 minutes=1 prompts=4
else
    large=large draft=draft eagle=eagle steps=7000 count=10000 rows=1024 batch=32768 minutes=8.5 prompts=200
fi

target() {
    run train "$work/corpus.ids" --shape $large --held "$work/held.ids" --out "$scratch/large" \
        --steps $steps --batch $batch --minutes $minutes
    run export "$scratch/large.pt" "$work/vocab.json" "$model" q8_0 --name spillway-demo-large
    split -b 15m "$model" "$out/large-q8_0.gguf."
    cp "$scratch/large.csv" "$out"
}
joined() { [ -e "$model" ] || cat "$out"/large-q8_0.gguf.a? > "$model"; }
drafters() {
    joined
    run sample "$model" "$work/prompts.jsonl" "$scratch/said" --count $count --batch $rows
    run lessons "$model" "$scratch/lessons" "$scratch/said" --batch $batch
    run distil "$scratch/lessons" --shape $draft --out "$out/draft" --steps $steps --batch $batch --minutes 2
    run boost "$out/draft.pt" "$scratch/lessons" "$scratch/marks"
    run distil "$scratch/lessons" --start "$out/draft.pt" --marks "$scratch/marks" --out "$out/boost" \
        --steps $((steps / 2)) --batch $batch --minutes 1.5
    run eagle "$model" "$scratch/lessons" --shape $eagle --out "$out/eagle" --steps $steps --batch $batch --minutes 2
    rm -f "$out"/*.state
}
measure() {                              # NAME=FILE...
    joined
    run measure "$model" "$out/acceptance.csv" draft="$out/draft.pt" boost="$out/boost.pt" both=draft+boost \
        eagle="$out/eagle.pt" --texts "$scratch/texts" --count $prompts --prompts "$@"
}

case $piece in
target) target ;;
drafters) drafters ;;
measure) measure gsm8k="$work/gsm8k-test.jsonl" humaneval="$work/humaneval.jsonl.gz" mt-bench="$work/mt-bench.jsonl" ;;
smoke) target; drafters; measure gsm8k="$work/gsm8k-test.jsonl" ;;
*) sed -n 's/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
