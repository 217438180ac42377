#!/bin/sh
# evals/speculation/run.sh - the papers' figures, measured on this engine: CSV and PNG.
#
#   run.sh SPILLWAY sparsity FOLDER OUT LAYERS "2 8 32" [flags]      speed-up and target efficiency, by experts used for a token
#   run.sh SPILLWAY control MODEL OUT BUDGET BATCHES "1 2 3 4 6 8" ACCEPT [flags]    controller, fixed gammas, none
#   run.sh SPILLWAY moving MODEL OUT MIB GEN USERS,USERS,...         speed while the number of users changes
#
# OUT is the prefix of the output files: OUT-sparsity.csv and .png, and so on. `sparsity` makes models
# of qwen3-30b-a3b's shape in FOLDER (0.37 GB a layer) with LAYERS layers, and with 2, 8 and 32 of 128 experts used for
# a token. It measures passes with `fit`, with all weights in memory and with a budget of half of the model's size, and
# prints them beside the fitted model. The default sizes are small, so that any machine can test the script; published
# results need an idle machine.
set -e
spillway=$1 what=$2 source=$3 out=$4
here=$(dirname "$0") evals=$(dirname "$1")/evals
shift 4

sparsity()
{
    layers=$1 used=$2
    shift 2
    echo "used,tier,sequences,drafted,rows,distinct,measured_ms,model_ms,efficiency,model_efficiency,held,reads_ms" >"$out-sparsity.csv"
    for k in $used; do
        model=$source/sparsity-$layers-$k.gguf
        [ -f "$model" ] || "$spillway" synth --shape qwen3-30b-a3b --layers "$layers" --vocab 32000 --used "$k" \
            --format q4_k -o "$model" --quiet
        half=$(($(stat -c %s "$model") / 2097152))
        for tier in memory disk; do
            budget=$([ $tier = disk ] && echo "--host-mem ${half}M" || true)
            # shellcheck disable=SC2086
            "$spillway" fit -m "$model" $budget --json --quiet "$@" |
                jq -rs --arg k "$k" --arg tier "$tier" '
                    map(select(.what == "point")) as $p |
                    ($p | map(select(.depth == 0) | {key: (.n_seq | tostring), value: .model_ms}) | from_entries) as $off |
                    $p[] | [$k, $tier, .n_seq, .depth, .rows, .distinct, .measured_ms, .model_ms, .efficiency,
                            $off[.n_seq | tostring] / .model_ms, .held, .reads_ms] | @csv' | tr -d '"' >>"$out-sparsity.csv"
        done
    done
    gnuplot -e "csv='$out-sparsity.csv'; png='$out-sparsity.png'; used='$used'" "$here/sparsity.gp"
}

# A batch is one run: blocks without drafts, with the controller, and with each fixed gamma, on the same tokens.
control()
{
    budget=$1 batches=$2 gammas=$3 accept=$4
    shift 4
    echo "batch,gamma,off_tokens_per_s,tokens_per_s,ratio,interval,ideal,ideal_gamma,efficiency,drafted_per_pass,auto_over_it" \
        >"$out-control.csv"
    for batch in $(echo "$batches" | tr , ' '); do
        "$spillway" bench -m "$source" --host-mem "$budget" --batch "$batch" --draft "oracle:$accept" \
            --against "$(echo "$gammas" | tr ' ' ,)" --json --quiet "$@" |
            jq -rs '
                map(select(.what == "decode" and .drafter == "none"))[1:] as $off | . as $all |
                def mean(f): map(f) | add / length;
                def pass_s: mean(.tokens_per_pass / .tokens_per_s);
                .[] | select(.what == "speedup" and .over == "none") | .gamma as $gamma |
                ($all | map(select(.what == "decode" and .drafter != "none" and .gamma == $gamma))) as $on |
                ($all | map(select(.what == "speedup" and .over != "none" and .over_gamma == $gamma)) | first) as $auto |
                [.batch, if $gamma < 0 then "auto" else $gamma end, ($off | mean(.tokens_per_s)),
                 ($on | mean(.tokens_per_s)), .ratio, .ratio_interval, .ideal, .ideal_gamma, ($off | pass_s) / ($on | pass_s),
                 ($on | mean(.drafted / (.seconds * .tokens_per_s / .tokens_per_pass))), $auto.ratio // 1] | @csv' |
            tr -d '"' >>"$out-control.csv"
    done
    gnuplot -e "csv='$out-control.csv'; png='$out-control.png'; gammas='$gammas'" "$here/control.gp"
}

moving()
{
    "$evals/speculation/moving" "$source" "$1" oracle:0.8 "$2" "$3" >"$out-moving.csv"
    gnuplot -e "csv='$out-moving.csv'; png='$out-moving.png'" "$here/moving.gp"
}

"$what" "$@"
