#!/bin/sh
# The demo, on one screen: a published model answers, if it can be fetched; a mixture-of-experts model runs with a tenth
# of its experts in memory and gives the same answer as with all; a table has its speed with and without drafts.
# A ratio is printed only if its 95 % interval excludes 1, and speeds that other programs disturbed are reported.
# Usage: demo.sh SPILLWAY
set -eu
spillway=$1
models=evals/train/models
moe=$models/demo-target-q8_0.gguf
[ -r "$moe" ] || { echo "$moe is missing: this runs in a checkout of the sources" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# ask MODEL QUESTION FLAGS...: the question as a chat of one message
ask() {
    prompt="<|im_start|>user
$2<|im_end|>
<|im_start|>assistant
"
    model=$1
    shift 2
    "$spillway" run -m "$model" --raw --special -p "$prompt" "$@"
}
indent() { { tr -s '\n' ' '; echo; } | fold -s -w 75 | sed 's/^/   /; s/ *$//'; }

real=$(tests/real/fetch.sh 2>"$work/why") || real=
question="What is a compiler? Answer in one sentence."
echo "1. A published model answers: SmolLM2-135M-Instruct, 98 MB"
if [ -n "$real" ]; then
    ask "$real" "$question" -n 80 --temp 0 >"$work/answer" 2>"$work/notes" || { cat "$work/notes" >&2; exit 1; }
    echo "   > $question"
    { cat "$work/answer"; sed -n 's/.*answer [0-9]* tokens, \(.*\)/ (\1)/p' "$work/notes"; } | indent
else
    tail -n 1 "$work/why" | indent
fi

# the memory split of a limit in KiB, in bytes: fixed dense step kv experts n_expert n_resident
split() {
    "$spillway" plan -m "$moe" --ctx-size 512 --chunk 64 --json --host-mem "$1K" | sed -n '/"what":"split"/{
        s/.*"fixed_bytes":\([0-9]*\),"dense_bytes":\([0-9]*\),"step_bytes":\([0-9]*\),"kv_bytes":\([0-9]*\),.*"expert_bytes":\([0-9]*\),.*"n_expert":\([0-9]*\),"n_resident":\([0-9]*\).*/\1 \2 \3 \4 \5 \6 \7/p;}'
}
all=$(split 1000000 | awk '{ printf "%d", ($1 + $2 + $3 + $4 + $5) / 1024 + 1024 }')
few=$(split 1000000 | awk '{ printf "%d", ($1 + $2 + $3 + $4 + $5 / 10) / 1024 + 64 }')
mib() { awk -v k="$1" 'BEGIN { printf "%.0f MiB", k / 1024 }'; }
echo "2. A mixture-of-experts model (24 MB), limited to $(mib "$few") with --host-mem"
split "$few" | awk '{ m = 1048576
    printf "   program %.1f, dense weights %.1f, buffers %.1f, KV cache %.1f, experts %.1f MiB\n", $1/m, $2/m, $3/m, $4/m, $5/m
    printf "   %d of %d experts fit in memory; the others are read from disk when needed\n", $7, $6 }'

question="How many eggs are in 3 dozen?"
echo "3. The same question and random seed with $(mib "$all") (all experts), and with $(mib "$few")"
same="-n 48 --temp 1 --seed 7 --quiet --ctx-size 512 --chunk 64"
ask "$moe" "$question" $same --host-mem "${all}K" >"$work/all"
ask "$moe" "$question" $same --host-mem "${few}K" >"$work/few"
echo "   > $question"
indent <"$work/few"
cmp -s "$work/all" "$work/few" || { echo "   The two answers differ: please report this." >&2; exit 1; }
echo "   The two answers have the same bytes. (This tiny model cannot calculate.)"

echo "4. Tokens/s without drafts, and with drafts of a smaller model that it verifies"
for i in 1 2 3 4 5 6; do
    printf '<|im_start|>user\nTom has %d boxes with 12 apples each. How many apples does he have?<|im_end|>\n' $i
    printf '<|im_start|>assistant\nTom has %d * 12 = %d apples.<|im_end|>\n' $i $((12 * i))
done >"$work/text"
"$spillway" bench -m "$moe" --host-mem "$((few + 38 * 1024))K" --kv-mem 4M --ctx-size 256 --chunk 32 --batch 1,8 --prompt 40 --gen 48 \
    --rounds 5 --warmup 32 --temp 0 -f "$work/text" --draft "model:$models/demo-draft-q8_0.gguf" --json --quiet >"$work/bench"
awk '
    function value(key,    i, s) {
        i = index($0, "\"" key "\":")
        if (!i) return ""
        s = substr($0, i + length(key) + 3); sub(/[,}].*/, "", s); gsub(/"/, "", s); return s
    }
    function median(list,    part, n, i, j, t) {
        n = split(list, part, " ")
        for (i = 2; i <= n; i++) for (j = i; j > 1 && part[j] + 0 < part[j - 1] + 0; j--) { t = part[j]; part[j] = part[j - 1]; part[j - 1] = t }
        low = part[1]; high = part[n]
        return n % 2 ? part[(n + 1) / 2] : (part[n / 2] + part[n / 2 + 1]) / 2
    }
    value("what") == "prefill" && !n++ {
        printf "   %d of %d experts fit in memory\n", value("slots"), value("experts")
        printf "   users   without drafts   with drafts   difference\n"
    }
    value("disk_Bps") > 0 { d = value("disk_Bps") / 1e9; if (!least || d < least) least = d; if (d > most) most = d }
    value("what") == "decode" {
        if (value("drafter") == "none") { if (seen[value("batch")]++) off[value("batch")] = off[value("batch")] " " value("tokens_per_s") }
        else { on[value("batch")] = on[value("batch")] " " value("tokens_per_s"); drafted[value("batch")] += value("drafted") }
    }
    value("what") == "speedup" {
        b = value("batch"); ratio = value("ratio"); half = value("ratio_interval")
        plain = median(off[b]); if (low > 0 && high / low > spread) { spread = high / low; slow = low; fast = high }
        with = median(on[b])
        if (!drafted[b]) says = "none: drafts stayed off"
        else if (ratio - half <= 1 && ratio + half >= 1) says = "no difference measured"
        else says = sprintf("%.2f to %.2f times as fast", ratio - half, ratio + half)
        printf "   %5d   %14.0f   %11.0f   %s\n", b, plain, with, says
    }
    END {
        if (spread > 1.3) printf "   Other programs disturbed this: one setting gave %.0f to %.0f tokens/s.\n", slow, fast
        if (least > 0 && most / least > 1.3) printf "   Disk probes gave %.1f to %.1f GB/s: the disk had other work.\n", least, most
    }' "$work/bench"
echo "Next: $spillway run -m MODEL.gguf, and docs/README.md"
