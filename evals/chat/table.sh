#!/bin/sh
# evals/chat/table.sh - conversations of 1 to 64 users, on disk and in memory, short and long prompts, temperature 0 and 0.7: CSV.
#
#     table.sh CHAT MODEL DISK_MIB MEMORY_MIB 'DRAFT[+DRAFT].. ..' FILE.jsonl OUT.csv SECONDS
#
# CHAT is build/release/evals/chat/chat; DISK_MIB a budget that holds a part of the experts, MEMORY_MIB one that holds all of them.
# A setting takes SECONDS, and some more to open its engines.  OUT.csv gets chat's lines, each with the setting's name before it.
# Settings that OUT.csv has already are left out, so the same command goes on after a stop.  The machine must have nothing else
# to do.
set -e
chat=$1 model=$2 disk=$3 memory=$4 drafts=$5 file=$6 out=$7 seconds=$8

# measure NAME MIB USERS LENGTH [NAME=VALUE]..: prompts of LENGTH tokens, of which all conversations share the most
measure()
{
    name=$1 mib=$2 users=$3 length=$4
    shift 4
    if grep -qs "^$name,# .*over none" "$out"; then return; fi
    "$chat" "$model" "$mib" "$drafts" "$users" "$file" shortest="$length" longest="$length" shared=1 turns=2 answer=200 reading=0 \
        seconds="$seconds" pieces=1000 "$@" | sed "s/^/$name,/" >"$out.part"
    grep -q "^$name,# .*over none" "$out.part"
    cat "$out.part" >>"$out"
    rm "$out.part"
}

for temperature in 0 0.7; do
    for users in 16 1 8 64; do
        piece=$((users * 12 < 100 ? 100 : users * 12))
        measure "disk-$users-$temperature" "$disk" $users 450 temperature=$temperature piece=$piece warm=$((2 * piece)) gammas=2
        measure "memory-$users-$temperature" "$memory" $users 450 temperature=$temperature piece=$piece warm=$((2 * piece)) gammas=2
    done
done
for tier in disk memory; do
    eval "mib=\$$tier"
    measure "$tier-long" "$mib" 16,4 4000 phase=2000 piece=200 warm=400 gammas=2
done
