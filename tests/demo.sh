#!/bin/sh
# The demo: makes a small synthetic model, looks at it, loads it and generates, then measures it.
# Usage: demo.sh SPILLWAY
set -e
spillway=$1
model=${TMPDIR:-/tmp}/spillway-demo-$$.gguf
trap 'rm -f "$model"' EXIT
echo "== a mixture-of-experts model with random weights (its text means nothing)"
"$spillway" synth --shape tiny --format q4_k --seed 1 -o "$model"
"$spillway" inspect "$model"
echo "== the same prompt and seed with one thread and with all: the same text"
one=$("$spillway" run -m "$model" -p "The river rises" -n 48 --seed 7 --threads 1 --quiet)
all=$("$spillway" run -m "$model" -p "The river rises" -n 48 --seed 7)
printf '%s\n' "$all"
[ "$one" = "$all" ] || { echo "the two differ: please report this"; exit 1; }
echo "== speed, with this machine's bound beside it"
"$spillway" bench -m "$model" --batch 1,4,16 --prompt 64 --gen 32
