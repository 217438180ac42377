#!/bin/sh
# evals/offload/sweep.sh - tokens/s against budget and batch, with the bound: CSV on stdout.
#   sweep.sh SPILLWAY MODEL.gguf "2G 4G 6G 8G 10G" 1,4,8,16,32 [more flags of bench]
# Each budget is a run of its own; rates of the disk and of memory are measured beside every figure.
spillway=$1 model=$2 budgets=$3 batches=$4
shift 4
echo "budget,what,batch,tokens_per_s,bound_tokens_per_s,bound_by,disk_Bps,read_Bps,hit_rate,optimal_read,wasted,stalled,slots,experts,peak_rss_bytes"
for budget in $budgets; do
    "$spillway" bench -m "$model" --host-mem "$budget" --batch "$batches" --json --quiet "$@" |
        jq -r --arg budget "$budget" '[$budget, .what, .batch, .tokens_per_s, .bound_tokens_per_s, .bound_by, .disk_Bps,
            .bytes_read / .seconds, .hit_rate, (if .bytes_read > 0 then .compulsory_bytes / .bytes_read else 1 end),
            (if .bytes_read > 0 then .wasted_bytes / .bytes_read else 0 end), .stall_s / .seconds, .slots, .experts,
            .peak_rss_bytes] | @csv' | tr -d '"'
done
