#!/usr/bin/env python3
"""Compares KV cache formats: perplexity of a text, and retrieval of facts planted far back in a long text.

  kv.py SPILLWAY MODEL TEXT [--kv f32,f16,int8] [--windows 512,2048] [--tokens N] [--length TOKENS] [--texts N]
                            [--facts N] [--only perplexity|retrieval]

Perplexity: the first --tokens tokens of TEXT, in windows of each given length, every token but a window's first
counted (spillway eval).  Retrieval: --texts documents of about --length tokens are made of TEXT's lines, each with
--facts sentences "The code of NAME is NUMBER." at even distances; after each document the beginning of one of these
sentences is asked again, and the greedy answer must begin with its number (spillway batch).  Names, numbers and lines
are drawn with a fixed seed, so that all formats are asked the same.  Prints CSV."""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

FIRST = "Ka Mi Ro Te Lu Sa No Vi Be Da Fe Go Hu Jo Pa".split()
LAST = "ran lin dor mas tel vik nor bel sin gar".split()


def run(command, **more):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more).stdout


def count_tokens(a, text):
    return run([a.spillway, "tokenize", "-m", a.model], input=text.encode()).count(b",") + 1


def cut(a, text, n):
    """The beginning of text with about n tokens, whole lines."""
    lines, size = text.splitlines(True), count_tokens(a, text)
    if size < n:
        sys.exit(f"kv.py: the text has {size} tokens, {n} are asked for")
    low, high = 0, len(lines)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count_tokens(a, "".join(lines[:middle])) <= n else (low, middle)
    return "".join(lines[:low])


def perplexity(a, text, window, kv, folder):
    path = os.path.join(folder, "text")
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    out = json.loads(run([a.spillway, "eval", "-m", a.model, "--text", path, "--ctx-size", str(window), "--kv", kv,
                          "--json", "-q"]))
    return out["perplexity"], out.get("tokens", out.get("n_tokens", 0))


def documents(a, text):
    """(prompt, answer) of all questions."""
    dice, lines = random.Random(1), [line for line in text.splitlines() if len(line) > 20]
    names = [first + last for first in FIRST for last in LAST]
    per_line = count_tokens(a, "\n".join(lines)) / len(lines)
    out = []
    for _ in range(a.texts):
        n_line = int((a.length - 14 * a.facts - 40) / per_line)
        start = dice.randrange(max(1, len(lines) - n_line))
        body = lines[start:start + n_line]
        facts = [(name, str(dice.randrange(100, 1000))) for name in dice.sample(names, a.facts)]
        for i, (name, number) in reversed(list(enumerate(facts))):
            body.insert(i * len(body) // a.facts, f"The code of {name} is {number}.")
        document = "\n".join(body)
        out += [(f"{document}\nThe code of {name} is", number) for name, number in facts]
    return out


def retrieval(a, questions, kv, folder):
    asked, answers = os.path.join(folder, "in.jsonl"), os.path.join(folder, f"out-{kv}.jsonl")
    with open(asked, "w", encoding="utf-8") as f:
        for i, (prompt, _) in enumerate(questions):
            f.write(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions",
                                "body": {"model": "m", "prompt": prompt, "max_tokens": 5, "temperature": 0}}) + "\n")
    run([a.spillway, "batch", "-m", a.model, asked, "-o", answers, "--kv", kv, "--draft", "none", "--parallel", "2",
         "--ctx-size", str(a.length + 256), "-q"])
    right = set()
    with open(answers, encoding="utf-8") as f:
        for line in f:
            got = json.loads(line)
            text = got["response"]["body"]["choices"][0]["text"]
            if text.strip().startswith(questions[int(got["custom_id"])][1]):
                right.add(int(got["custom_id"]))
    return right


def main():
    p = argparse.ArgumentParser(description="perplexity and retrieval with each KV cache format")
    p.add_argument("spillway")
    p.add_argument("model")
    p.add_argument("text")
    p.add_argument("--kv", default="f32,f16,int8")
    p.add_argument("--windows", default="512,2048")
    p.add_argument("--tokens", type=int, default=16384)
    p.add_argument("--length", type=int, default=1800)
    p.add_argument("--texts", type=int, default=8)
    p.add_argument("--facts", type=int, default=12)
    p.add_argument("--only", choices=["perplexity", "retrieval"])
    a = p.parse_args()
    with open(a.text, encoding="utf-8") as f:
        text = f.read()
    model, kinds = os.path.basename(a.model), a.kv.split(",")
    print("model,what,length,samples,kv,value,against_first", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for window in a.windows.split(",") if a.only != "retrieval" else []:
            part, first = cut(a, text, a.tokens), None
            for kv in kinds:
                value, n = perplexity(a, part, int(window), kv, folder)
                first = first or value
                print(f"{model},perplexity,{window},{n},{kv},{value:.4f},{100 * (value / first - 1):+.3f} %", flush=True)
        if a.only != "perplexity":
            questions, first = documents(a, text), None
            for kv in kinds:
                right = retrieval(a, questions, kv, folder)
                first = right if first is None else first
                print(f"{model},retrieval,{a.length},{len(questions)},{kv},{len(right)},"
                      f"+{len(right - first)} -{len(first - right)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
