#!/bin/sh
# The demo: a small trained model, with a budget that leaves most of its experts on disk, answers three prompts,
# gives the same answer with one thread and with all, and is benchmarked.
# Usage: demo.sh SPILLWAY
set -e
spillway=$1
model=evals/train/models/demo-target-q8_0.gguf
budget="--host-mem 30M --ctx-size 512 --chunk 64"
[ -r "$model" ] || { echo "$model is missing: this runs in a checkout of the sources" >&2; exit 1; }
ask() {
    prompt="<|im_start|>user
$1<|im_end|>
<|im_start|>assistant
"
    shift
    "$spillway" run -m "$model" $budget --raw --special -p "$prompt" "$@"
}
echo "== the memory split of 30 MiB for a model of 24 MiB: most experts stay on disk"
"$spillway" plan -m "$model" $budget
echo
echo "== three prompts (the model is tiny: its answers have the style of its training text, but are not right)"
for prompt in "Tom has 3 boxes with 12 apples each. He gives away 7 apples. How many apples are left?" \
              "A train runs 60 miles an hour for 4 hours. How far does it go?" \
              "Write a Python function that returns the sum of a list."; do
    printf '\n> %s\n' "$prompt"
    ask "$prompt" -n 96 --temp 0
done
echo
echo "== one prompt and seed, with one thread and all experts in memory, and with the budget above: the same answer"
all=$(budget="" ask "How many eggs are in 3 dozen?" -n 64 --temp 1 --seed 7 --threads 1 --quiet)
few=$(ask "How many eggs are in 3 dozen?" -n 64 --temp 1 --seed 7 --quiet)
printf '%s\n' "$few"
[ "$all" = "$few" ] || { echo "the two differ: please report this"; exit 1; }
echo
echo "== again with a smaller draft model: the same answer, in fewer passes"
drafted=$(budget="--host-mem 60M --ctx-size 512 --chunk 64" ask "How many eggs are in 3 dozen?" -n 64 --temp 1 --seed 7 \
          --draft model:evals/train/models/demo-draft-q8_0.gguf --gamma 3)
[ "$drafted" = "$few" ] || { echo "the two differ: please report this"; exit 1; }
echo
echo "== speed, beside the bound of this machine"
"$spillway" bench -m "$model" --host-mem 60M --chunk 64 --batch 1,4 --prompt 48 --gen 48
echo
echo "== one sequence: without drafts, as the controller decides, and with three tokens always drafted"
"$spillway" bench -m "$model" --host-mem 60M --ctx-size 512 --chunk 64 --batch 1 --prompt 48 --gen 48 --rounds 3 \
    --warmup 32 --draft model:evals/train/models/demo-draft-q8_0.gguf --against 3
