#!/bin/sh
# Checks the memory budget: runs `bench` in a memory cgroup with a limit of 105 % of --host-mem, and prints the group's
# peak as CSV. Fails if bench fails or the peak exceeds 102 %. Needs root, and the memory controller of cgroup v1 or v2.
# Usage: tests/budget.sh SPILLWAY MODEL.gguf BUDGET_IN_MIB...      BENCH: other flags for bench
spillway=$1 model=$2
shift 2
if [ -e /sys/fs/cgroup/memory/memory.limit_in_bytes ]; then
    root=/sys/fs/cgroup/memory limit=memory.limit_in_bytes peak=memory.max_usage_in_bytes
else
    root=/sys/fs/cgroup limit=memory.max peak=memory.peak
fi
group=$root/spillway-budget-$$
failed=0
echo "budget_mib,peak_mib,peak_of_budget,bench_status,decode_tokens_per_s"
for mib in "$@"; do
    mkdir "$group" || exit 2
    echo $((mib * 1024 * 1024 / 100 * 105)) >"$group/$limit"
    out=$(sh -c 'echo $$ >"$0" && exec "$@"' "$group/cgroup.procs" "$spillway" bench -m "$model" --quiet --json \
          --host-mem "${mib}M" ${BENCH:---batch 16 --prompt 64 --gen 16 --warmup 0})
    status=$?
    speed=$(printf '%s\n' "$out" | sed -n 's/.*"what":"decode".*"tokens_per_s":\([0-9.]*\),"bound_tok.*/\1/p')
    most=$(cat "$group/$peak")
    echo "$mib,$((most / 1048576)),$(awk "BEGIN { printf \"%.4f\", $most / $mib / 1048576 }"),$status,$speed"
    [ $status = 0 ] && [ "$most" -le $((mib * 1048576 / 50 * 51)) ] || failed=1
    rmdir "$group" 2>/dev/null || { sleep 1; rmdir "$group"; }
done
exit $failed
