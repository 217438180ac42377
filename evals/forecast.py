#!/usr/bin/env python3
"""Compares the forecasts of `spillway plan` with measurements of `spillway bench`, on random weights in published shapes.

    evals/forecast.py build/release/spillway FOLDER [--rounds N] [--only WORD] [--lock COMMAND]

For each configuration below a model is written to FOLDER, and plan and bench run in turns, N times (3).  Memory and disks of shared
machines change their rates within seconds, so one pair says little: a CSV line has the medians of the N forecasts and of the N measured
speeds, the ratio of both, the smallest and largest ratio of a round, and the memory rates that plan and bench measured.  The last lines
count the configurations within 15 % and 20 %.  --lock runs each round under a command, such as `flock FILE`.
"""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys

BATCHES = [1, 4, 8, 16, 32]
CONFIGURATIONS = [  # shape, layers, format, --host-mem (0: everything in memory)
    ("phi-4-mini", 6, "q4_k", 0),
    ("phi-4-mini", 4, "q8_0", 0),
    ("smollm3-3b", 6, "q4_k", 0),
    ("smollm3-3b", 8, "iq4_xs", 0),
    ("ministral-3-8b", 3, "q5_k", 0),
    ("ministral-3-8b", 4, "q6_k", 0),
    ("gemma-3-270m", 0, "q4_k", 0),
    ("gemma-3-12b", 2, "q4_k", 0),
    ("ling-lite", 4, "q4_k", 0),
    ("ling-mini-2.0", 4, "q5_k", 0),
    ("ernie-4.5-21b-a3b", 4, "q4_k", 0),
    ("granite-3.1-3b-a800m", 8, "q6_k", 0),
    ("dots.llm1", 2, "q4_k", 0),
    ("hunyuan-a13b", 2, "q4_k", 0),
    ("k-exaone-236b", 1, "q4_k", 0),
    ("solar-open-100b", 2, "q4_k", 0),
    ("qwen2-57b-a14b", 2, "q6_k", 0),
    ("glm-4.5-air", 2, "q4_k", 0),
    ("minimax-m2", 1, "q4_k", 0),
    ("olmoe", 6, "q8_0", 0),
    ("qwen3-30b-a3b", 3, "q6_k", 0),
    ("deepseek-v2-lite", 4, "iq4_xs", 0),
    ("ling-lite", 4, "q4_k", "1200M"),
    ("ling-mini-2.0", 5, "q5_k", "1400M"),
    ("ernie-4.5-21b-a3b", 4, "q4_k", "1200M"),
    ("dots.llm1", 3, "q4_k", "2000M"),
    ("olmoe", 6, "q8_0", "1300M"),
    ("qwen3-30b-a3b", 3, "q6_k", "1300M"),
    ("solar-open-100b", 2, "q4_k", "1900M"),
    ("glm-4.5-air", 2, "q4_k", "2000M"),
]


def lines(command):
    out = subprocess.run(command, capture_output=True, text=True)
    if out.returncode:
        sys.exit(f"{shlex.join(command)}: {out.stderr.strip()}")
    return [json.loads(line) for line in out.stdout.splitlines() if line.startswith("{")]


def decode(objects):
    return {o["batch"]: o for o in objects if o["what"] == "decode"}


def measure(spillway, model, host_mem, lock):
    """Forecast and measured figures of one round, by batch."""
    memory = ["--host-mem", host_mem] if host_mem else []
    plan = ["plan", "-m", model, "--json", "-np", "32", "-c", "512", *memory]
    bench = ["bench", "-m", model, "--json", "--batch", ",".join(map(str, BATCHES)), "-c", "512", "--prompt", "32",
             "--gen", "16", "--warmup", "8", "--rounds", "1", "--draft", "none", *memory]
    both = f"{shlex.join([spillway, *plan])} && {shlex.join([spillway, *bench])}"
    objects = lines([*lock, "sh", "-c", both])
    first = next(i for i, o in enumerate(objects) if o["what"] == "prefill" and "peak_rss_bytes" in o)
    return decode(objects[:first]), decode(objects[first:])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("spillway")
    p.add_argument("folder")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--only", default="")
    p.add_argument("--lock", default="")
    a = p.parse_args()
    near = {0.15: 0, 0.20: 0}
    total = 0
    print("shape,layers,format,host_mem,batch,forecast,measured,ratio,least,most,plan_dram,bench_dram", flush=True)
    for shape, layers, fmt, host_mem in CONFIGURATIONS:
        if a.only not in f"{shape} {fmt} {host_mem or 'all'}":
            continue
        model = os.path.join(a.folder, f"{shape}.gguf")
        subprocess.run([a.spillway, "synth", "--shape", shape, "--layers", str(layers), "--format", fmt, "-q", "-o", model],
                       check=True)
        os.sync()
        rounds = [measure(a.spillway, model, host_mem, shlex.split(a.lock)) for _ in range(a.rounds)]
        os.remove(model)
        for batch in BATCHES:
            pairs = [(f[batch], m[batch]) for f, m in rounds if batch in f and batch in m]
            forecast = statistics.median(f["tokens_per_s"] for f, _ in pairs)
            measured = statistics.median(m["tokens_per_s"] for _, m in pairs)
            ratios = [f["tokens_per_s"] / m["tokens_per_s"] for f, m in pairs]
            rates = [statistics.median(x["dram_Bps"] for x in side) / 1e9 for side in zip(*pairs)]
            print(f"{shape},{layers},{fmt},{host_mem or 'all'},{batch},{forecast:.1f},{measured:.1f},"
                  f"{forecast / measured:.3f},{min(ratios):.3f},{max(ratios):.3f},{rates[0]:.1f},{rates[1]:.1f}", flush=True)
            total += 1
            for limit in near:
                near[limit] += 1 / (1 + limit) <= forecast / measured <= 1 + limit
    for limit, n in near.items():
        print(f"# within {limit * 100:.0f} %: {n} of {total}")


main()
