#!/bin/sh
# Compares the speed of this tree with a base commit: builds both, runs both in alternating pairs, prints one table.
#
#   evals/guard.sh [BASE [ROUNDS]]        as `make guard BASE=COMMIT ROUNDS=N` does; run it from the root
#
# BASE is a commit, by default the last tag; ROUNDS is 8 by default. All output is in build/guard/: a clone of
# the base for each commit, the model, and for each pair of trees a table and all runs as CSV. Exit status: 0 for
# all results, 1 if a build or a run failed, 2 if the base does not exist.
set -u
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES          # a `make MODE=... guard` must not affect these builds

dir=build/guard
model=$dir/q30-2.gguf
bench_repeats=3 run_repeats=5                           # pairs of bench and of run in one round
prompt='Once upon a time, in a village at the foot of a mountain, there lived a woman who mended clocks.'

fail() { echo "guard: $1" >&2; exit "${2:-1}"; }

# run LOG COMMAND...: runs COMMAND with its output in LOG, and prints the end of LOG if COMMAND fails
run()
{
    log=$1; shift
    "$@" >"$log" 2>&1 && return
    tail -n 20 "$log" >&2
    fail "failed: $*"
}

build() { run "$2" make -C "$1" -j"$(nproc)" && run "$2" make -C "$1" -j"$(nproc)" build/release/evals/kernels; }

# ---- the two trees ---------------------------------------------------------------------------------------
[ -f evals/kernels.c ] || fail "run this from the root of the tree" 2
name=${1:-}
if [ -z "$name" ]; then
    name=$(git describe --tags --abbrev=0 2>/dev/null) ||
        fail "no commit is tagged here: name the base, as in: make guard BASE=HEAD~1" 2
fi
base=$(git rev-parse --verify --quiet --short=10 "$name^{commit}") || fail "$name is not a commit" 2
rounds=${2:-8}
case $rounds in ''|*[!0-9]*|0) fail "ROUNDS must be a number from 1 on, not $rounds" 2;; esac
new=$(git rev-parse --short=10 HEAD)
[ -z "$(git status --porcelain --untracked-files=no)" ] || new=$new-changed

mkdir -p "$dir"
tree=$dir/$base
if [ ! -d "$tree" ]; then
    rm -rf "$tree.part"
    run "$dir/clone.log" git clone --no-checkout . "$tree.part"
    run "$dir/clone.log" git -C "$tree.part" checkout --detach "$base"
    mv "$tree.part" "$tree"
fi
echo "guard: building $new, and $base in $tree" >&2
build . "$dir/build-new.log"
build "$tree" "$dir/build-base.log"

# If the base's evals/kernels takes no lists, this tree's source of it is linked with the base's kernels instead.
kernel_formats=q4_k,q6_k,q8_0,f16 kernel_rows=1,4,16
if ! "$tree/build/release/evals/kernels" $kernel_formats best 1 >/dev/null 2>&1; then
    echo "guard: the base's evals/kernels takes no lists: building this tree's source with the base's kernels" >&2
    cp evals/kernels.c evals/measure.h "$tree/evals/"
    build "$tree" "$dir/build-base.log"
fi
if [ ! -f "$model" ]; then
    run "$dir/synth.log" build/release/spillway synth --shape qwen3-30b-a3b --layers 2 --format q4_k --vocab 32000 \
        --seed 1 -o "$model.part"
    mv "$model.part" "$model"
fi
rm -f "$model.heat"

# ---- one measurement of one tree: lines figure;value;better (more, less)   ------------------------------
measure_kernels()
{
    run "$dir/kernels.out" "$1/build/release/evals/kernels" $kernel_formats best $kernel_rows
    awk -F, '$1 == "matmul" { f = $2 " matmul, n_row " $4 " (GMAC/s)"
                              if (!(f in value)) order[++n] = f
                              value[f] = $7 }                                   # the last line of a figure is the one with all threads
        END { for (i = 1; i <= n; i++) print order[i] ";" value[order[i]] ";more" }' "$dir/kernels.out"
}

measure_bench()
{
    run "$dir/bench.out" "$1/build/release/spillway" bench -m "$model" --host-mem 3G --batch 1,4,16 --prompt 256 --gen 128 \
        --warmup 8 --quiet --json
    rm -f "$model.heat"
    sed -n 's/^{"what":"\([a-z]*\)","batch":\([0-9]*\),"tokens_per_s":\([0-9.]*\),.*/\1, batch \2 (tokens\/s);\3;more/p' \
        "$dir/bench.out" | grep -v '^prefill, batch 4 '
}

measure_first_token()
{
    raw=$("$1/build/release/spillway" run --help | grep -o -e '--raw' | head -n 1) # an older base has no other way
    start=$(date +%s%N)
    run "$dir/run.out" "$1/build/release/spillway" run -m "$model" --host-mem 3G $raw -p "$prompt" -n 1 --seed 1 --temp 0 --quiet
    end=$(date +%s%N)
    rm -f "$model.heat"
    echo "$((end - start))" | awk '{ printf "first token, from process start to exit (ms);%.2f;less\n", $1 / 1e6 }'
}

# ---- alternating pairs -------------------------------------------------------------------------------------
runs=$dir/$base-$new-runs.csv
echo "round,tree,figure,value,better" >"$runs"

side() { [ "$1" = base ] && echo "$tree" || echo .; }

# pairs PART ROUND REPEATS: measures both trees in turn, REPEATS times; every other pair begins with the base
pairs()
{
    turn=0
    while [ $turn -lt "$3" ]; do
        [ $((($2 + turn) % 2)) = 0 ] && order="base new" || order="new base"
        for which in $order; do
            "measure_$1" "$(side "$which")" >"$dir/figures.out"
            [ -s "$dir/figures.out" ] || fail "no figures from $1 of $which"
            sed "s/^\(.*\);\(.*\);\(.*\)$/$2,$which,\"\1\",\2,\3/" "$dir/figures.out" >>"$runs"
        done
        turn=$((turn + 1))
    done
}

round=0
while [ $round -lt "$rounds" ]; do
    echo "guard: round $((round + 1)) of $rounds" >&2
    pairs kernels $round 1
    pairs bench $round $bench_repeats
    pairs first_token $round $run_repeats
    round=$((round + 1))
done

# ---- the table ---------------------------------------------------------------------------------------------
# The ratio is speed over speed, the geometric mean of the pairs' ratios; its interval is Student's over their logarithms.
# Verdicts: "slower" if the ratio is below 0.99 and its whole interval is below 1; "ok?" if the interval includes a loss
# of 5 %, so that the measurement does not decide; "ok" otherwise.
cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
config="base $base, new $new, $(date +%Y-%m-%d), $rounds rounds, $(nproc) processors of $cpu"
{
    echo "# $config; evals/guard.sh; ratio: speed of new over speed of base, with its 95 % interval"
    echo "figure,base_median,new_median,ratio,low,high,verdict"
    awk '
    function median(list, n,   i, j, x) {
        for (i = 2; i <= n; i++) {
            x = list[i]
            for (j = i - 1; j >= 1 && list[j] > x; j--)
                list[j + 1] = list[j]
            list[j + 1] = x
        }
        return n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2
    }
    function all_median(tree, f,   i, list) {
        for (i = 1; i <= count[tree, f]; i++)
            list[i] = value[tree, f, i]
        return median(list, count[tree, f])
    }
    NR > 1 {
        split($0, part, "\"")                           # round,tree, / figure / ,value,better
        split(part[1], head, ","); split(part[3], tail, ",")
        f = part[2]
        if (!(f in better)) { better[f] = tail[3]; order[++n_figure] = f }
        value[head[2], f, ++count[head[2], f]] = tail[2] + 0
    }
    END {
        split("12.706 4.303 3.182 2.776 2.571 2.447 2.365 2.306 2.262 2.228 2.201 2.179 2.160 2.145 2.131 2.120 " \
              "2.110 2.101 2.093 2.086 2.080 2.074 2.069 2.064 2.060 2.056 2.052 2.048 2.045 2.042", student, " ")
        for (k = 1; k <= n_figure; k++) {
            f = order[k]; n = count["new", f]
            sum = squares = 0
            for (i = 1; i <= n; i++) {
                x[i] = log(value["new", f, i] / value["base", f, i]) * (better[f] == "less" ? -1 : 1)
                sum += x[i]
            }
            mean = sum / n
            for (i = 1; i <= n; i++)
                squares += (x[i] - mean) ^ 2
            t = n > 31 ? 2.042 : student[n - 1]
            half = n > 1 ? t * sqrt(squares / (n - 1) / n) : 9      # one pair: no interval
            ratio = exp(mean); low = exp(mean - half); high = exp(mean + half)
            verdict = ratio < 0.99 && high < 1 ? "slower" : low < 0.95 ? "ok?" : "ok"
            printf "\"%s\",%.5g,%.5g,%.4f,%.4f,%.4f,%s\n", f, all_median("base", f), all_median("new", f), ratio, low, high,
                   verdict
        }
    }' "$runs" || fail "cannot make a table of $runs"
} >"$dir/$base-$new.csv"

echo "$config."
echo "Ratio: speed of new over speed of base, below 1 slower, with its 95 % interval."
echo
awk '
    BEGIN { rule = "| %-45s | %10s | %10s | %6s | %-15s | %-7s |\n"
            printf rule, "", "base", "new", "ratio", "95 %", "verdict"
            print "|---|---|---|---|---|---|" }
    NR > 2 { split($0, part, "\""); split(part[3], v, ",")
             printf rule, part[2], v[2], v[3], sprintf("%.3f", v[4]),
                    sprintf("%.3f to %s", v[5], v[6] > 99 ? "> 99" : sprintf("%.3f", v[6])), v[7] }' "$dir/$base-$new.csv"
echo
echo "also $dir/$base-$new.csv; every run: $runs"
