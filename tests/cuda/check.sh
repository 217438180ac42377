#!/bin/sh
# Checks the PTX of the CUDA kernels, and what ptxas makes of it.
#   - The PTX has no approximate or flushing float operation, and each addition, subtraction, multiplication, fused
#     operation, division and root of floats says .rn: so ptxas may not contract or reorder it.
#   - The driver's functions have the parameters of NVIDIA's cuda.h, where that is installed.
#   - Registers, shared memory and spills of each kernel are those of tests/cuda/resources.txt; spills are 0.
# Usage: check.sh [--write] FOLDER TOOLKIT SM...    FOLDER has NAME.ptx and NAME.SM.log, TOOLKIT has include/cuda.h; --write
# makes the table new
cd "$(dirname "$0")/../.." || exit 1
write=; [ "$1" = --write ] && { write=1; shift; }
folder=$1 toolkit=$2; shift 2; bad=0
complain() { echo "check of CUDA: $1"; bad=1; }

for ptx in "$folder"/*.ptx; do
    grep -nE '\.approx|\.ftz|div\.full|\.(rz|rm|rp)\.f(32|64)|(sin|cos|lg2|ex2|tanh)\.' "$ptx" | head -3 | grep . &&
        complain "$ptx has an operation that does not round to nearest"
    grep -nE '[[:space:]](add|sub|mul|mad|fma|div|sqrt|rcp)\.(sat\.)?f(32|64)' "$ptx" | head -3 | grep . &&
        complain "$ptx has a float operation without .rn"
done

if [ -e "$toolkit/include/cuda.h" ]; then
    ${CC:-cc} -std=gnu11 -I. -I"$toolkit/include" -fsyntax-only tests/cuda/driver_types.c || complain "kernels/cuda/driver.h differs from cuda.h"
fi

for sm in "$@"; do
    for log in "$folder"/*."$sm".log; do
        awk -v sm="$sm" '/Compiling entry/ { split($0, q, "\047"); name = q[2]; sub(/^kn_run_/, "", name) }
            /bytes spill stores/ { for (i = 1; i < NF; i++) if ($(i + 2) == "spill" && $i + 0 > 0) spill += $i }
            / Used / { shared = 0
                for (i = 1; i < NF; i++) { if ($(i + 1) ~ /^registers/) registers = $i; if ($(i + 2) ~ /^smem/) shared = $i }
                print sm, name, registers, shared, spill + 0; spill = 0 }' "$log"
    done
done | sort -k1,1n -k2,2 >"$folder/resources.now"
awk '$5 > 0 { print "  " $2 " for sm_" $1 " spills " $5 " bytes" }' "$folder/resources.now" | grep . && complain "registers are spilled"
if [ "$write" ]; then
    { echo "# GPU, kernel, registers, bytes of shared memory, bytes of spills (tests/cuda/check.sh --write)"
      cat "$folder/resources.now"; } >tests/cuda/resources.txt
else
    for sm in "$@"; do
        grep "^$sm " tests/cuda/resources.txt >"$folder/resources.kept"
        grep "^$sm " "$folder/resources.now" | diff "$folder/resources.kept" - | sed -n 's/^< /  was: /p; s/^> /  is:  /p' | grep . &&
            complain "kernels for sm_$sm do not have the kept registers and memory (if that is right: make cuda-resources)"
    done
fi
[ $bad = 0 ] && echo "check of CUDA: ok, $(wc -l <"$folder/resources.now") kernels"
exit $bad
