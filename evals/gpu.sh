#!/bin/sh
# Runs on a machine with an NVIDIA GPU, with programs built before: make tests evals SM=90 (the GPU's compute capability).
# First the tests of the kernels and of whole passes, on the device instead of the interpreter; then the demo model: each
# operation of its passes, recorded on the host (evals/trace.c), and its logits must be the host's; then figures: the kernels beside the rate of copies (evals/gpu.c), and tokens per second with and
# without the device, in turns. In the order of their worth: a run that is cut off still says something. Nine minutes at most.
# Usage: evals/gpu.sh [BUILD_DIR] [OUT_DIR]
cd "$(dirname "$0")/.." || exit 1
out=${1:-build/release} to=${2:-build/gpu} demo=evals/train/models/demo-target-q8_0.gguf bad=0
mkdir -p "$to"
{ nvidia-smi --query-gpu=name,driver_version,memory.total,pcie.link.gen.current --format=csv,noheader
  git describe --always --dirty 2>/dev/null; date -u +%F; } >"$to/machine.txt" 2>&1
cat "$to/machine.txt"

for t in test_products test_fused test_pass test_pass_layers test_shapes test_forward; do
    if timeout 60 "$out/tests/cuda/$t" >"$to/$t.log" 2>&1 && ! grep -q '^skipped: ' "$to/$t.log"; then
        echo "ok   $t"
    else
        echo "FAIL $t"; grep -E 'ERROR|error|FAILED|skipped' "$to/$t.log" | head -20; bad=1
    fi
done

for kv in f16 int8; do
    timeout 60 "$out/evals/trace" record "$demo" "$to/demo.trace" 16 $kv &&
        timeout 60 "$out/evals/trace" replay "$to/demo.trace" cuda || { echo "FAIL trace, $kv"; bad=1; }
    rm -f "$to/demo.trace"
done

# same NAME FLAGS..: the logits of 64 tokens on the device are those of the host
same() {
    name=$1; shift
    if timeout 60 "$out/spillway" eval "$@" --ids "$ids" --logits "$to/host.f32" --quiet &&
        timeout 60 "$out/spillway" eval "$@" --ids "$ids" --logits "$to/device.f32" --quiet --device cuda &&
        cmp "$to/host.f32" "$to/device.f32"; then
        echo "ok   $name: the same logits"
    else
        echo "FAIL $name"; bad=1
    fi
    rm -f "$to/host.f32" "$to/device.f32"
}
ids=$(seq -s, 1 64)
same demo -m "$demo"
same "demo, int8 keys and values" -m "$demo" --kv int8
same "demo, experts of four layers on the host" -m "$demo" --n-cpu-moe 4 --chunk 8
same "demo, all experts on the host" -m "$demo" --cpu-moe --chunk 8

# The self-test of the device at the first start, and its kept result at the second one: seconds
rm -rf "$to/cache"
for start in first second; do
    since=$(date +%s%N)
    XDG_CACHE_HOME="$to/cache" timeout 60 "$out/spillway" eval -m "$demo" --ids 1,2 --logits "$to/device.f32" --quiet --device cuda
    echo "$start start: $((($(date +%s%N) - since) / 1000000)) ms"
done | tee "$to/starts.txt"
[ -n "$(ls "$to"/cache/spillway/*.gpu 2>/dev/null)" ] || { echo "FAIL no kept self-test"; bad=1; }
rm -f "$to/device.f32"

# turns NAME LIMIT MODEL FLAGS..: bench on the host and on the device, in turns; lines of JSON
turns() {
    name=$1 limit=$2; shift 2
    for turn in 1 2; do
        timeout "$limit" "$out/spillway" bench -m "$@" --draft none --json >>"$to/$name.host.json"
        timeout "$limit" "$out/spillway" bench -m "$@" --draft none --json --device cuda >>"$to/$name.cuda.json"
    done
    for side in host cuda; do
        sed -n 's/.*"what":"\([a-z]*\)".*"batch":\([0-9]*\),.*"tokens_per_s":\([0-9.]*\),.*/'"$name $side"' \1 \2 \3/p' "$to/$name.$side.json"
    done | sort | tee "$to/$name.txt"
}
rm -f "$to"/*.json
timeout 90 "$out/evals/gpu" 0 4096 | tee "$to/gpu.csv"
turns demo 20 "$demo" --batch 1,4,16 --prompt 64 --gen 32 --warmup 8
turns demo-part 20 "$demo" --batch 1,4,16 --prompt 64 --gen 32 --warmup 8 --n-cpu-moe 4
if timeout 60 "$out/spillway" synth --shape qwen3-30b-a3b --layers 4 --format q4_k -o "$to/synth.gguf" --quiet; then
    turns qwen3 40 "$to/synth.gguf" --batch 1,8,32 --prompt 64 --gen 16 --warmup 16
    rm -f "$to/synth.gguf"
fi
exit $bad
