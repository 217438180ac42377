#!/bin/sh
# Runs on a machine with an NVIDIA GPU, with programs built before: make tests evals SM=90 (the GPU's compute capability).
# First the tests of the kernels, on the device instead of the interpreter; then figures (evals/gpu.c). In the order of their
# worth: a run that is cut off still says something. Usage: evals/gpu.sh [BUILD_DIR] [OUT_DIR]
cd "$(dirname "$0")/.." || exit 1
out=${1:-build/release} to=${2:-build/gpu}
mkdir -p "$to"
{ nvidia-smi --query-gpu=name,driver_version,memory.total,pcie.link.gen.current --format=csv,noheader
  git describe --always --dirty 2>/dev/null; date -u +%F; } >"$to/machine.txt" 2>&1
cat "$to/machine.txt"
bad=0
for t in test_products test_pass test_pass_layers test_shapes; do
    if timeout 120 "$out/tests/cuda/$t" >"$to/$t.log" 2>&1 && ! grep -q '^skipped: ' "$to/$t.log"; then
        echo "ok   $t"
    else
        echo "FAIL $t"; grep -E 'ERROR|error|FAILED|skipped' "$to/$t.log" | head -20; bad=1
    fi
done
timeout 180 "$out/evals/gpu" 0 4096 | tee "$to/gpu.csv"
exit $bad
