#!/bin/sh
# evals/offload/sweep.sh - tokens/s against budget and batch, with the bound: CSV on stdout.
#   sweep.sh SPILLWAY MODEL.gguf "2G 4G 6G 8G 10G" 1,4,8,16,32 [more flags of bench]
# Each budget is one run of bench, which also measures the disk and memory rates.
#   PEER=4G=http://127.0.0.1:8080 sweep.sh ...
# also measures a server that already runs the same model within that budget, after bench has ended; its rows have
# `peer` in column `what`. One user for each sequence sends two requests of 16 words and 10 tokens; the time includes
# prefill.
spillway=$1 model=$2 budgets=$3 batches=$4
shift 4
load=$(dirname "$spillway")/evals/load/load
echo "budget,what,batch,tokens_per_s,bound_tokens_per_s,bound_by,disk_Bps,read_Bps,hit_rate,optimal_read,wasted,stalled,slots,experts,peak_rss_bytes"
for budget in $budgets; do
    "$spillway" bench -m "$model" --host-mem "$budget" --batch "$batches" --json --quiet "$@" |
        jq -r --arg budget "$budget" '[$budget, .what, .batch, .tokens_per_s, .bound_tokens_per_s, .bound_by, .disk_Bps,
            .bytes_read / .seconds, .hit_rate, (if .bytes_read > 0 then .compulsory_bytes / .bytes_read else 1 end),
            (if .bytes_read > 0 then .wasted_bytes / .bytes_read else 0 end), .stall_s / .seconds, .slots, .experts,
            .peak_rss_bytes] | @csv' | tr -d '"'
    [ "${PEER%%=*}" = "$budget" ] || continue
    for batch in $(echo "$batches" | tr , ' '); do
        "$load" --users "$batch" --requests $((2 * batch)) --prompt-words 16 --max-tokens 10 --ignore-eos --warmup 0 --json \
            "peer=${PEER#*=}" | jq -r --arg budget "$budget" 'select(.what == "block") |
                [$budget, "peer", .users, .tokens_per_s, "", "", "", "", "", "", "", "", "", "", ""] | @csv' | tr -d '"'
    done
done
