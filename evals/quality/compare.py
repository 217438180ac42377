#!/usr/bin/env python3
"""Compares the engine's perplexity with that of a float64 reference on the same dequantised weights.

  compare.py SPILLWAY JSONL MODEL... [--form plain|chat] [--count N] [--window N]

JSONL has lines {"question", "answer"}, as gsm8k's files.  plain: the first N lines are joined to one text,
as `spillway eval --text` reads it; chat: each line is a conversation in ChatML.  SPILLWAY tokenises the text.
The engine and the reference read the same windows and count every token except the first of each window.

Prints CSV, one line per model:
  perplexity          of float64; of the engine with its KV cache in F32, and in F16 (its default)
  percent above       of the engine over float64, with the standard error (paired, over tokens); and of the
  float64             reference with the engine's roundings (reference.py): 8-bit activations, F16 KV, both
  mean KL divergence  in nats: float64 from the engine (F32); float64 from the reference with 8-bit activations;
                      that reference from the engine, the part that 8-bit activations do not explain
  top-1 agreement     share of tokens for which the engine's most likely successor is float64's

With --parts it measures which products cause the cost of 8-bit activations: the KL divergence of float64 from
the reference with 8-bit activations in one group of products, and in all products but with float64's choice of
experts.  The engine is not run."""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile

import numpy as np

from reference import ALL, Model

PARTS = {"qkv": ("attn_q.", "attn_k.", "attn_v."), "attn_output": ("attn_output",),
         "gate_up": ("ffn_gate_exps", "ffn_up_exps", "ffn_gate.", "ffn_up."),
         "down": ("ffn_down",), "head": ("output.weight", "token_embd")}


def texts(path, form, count):
    with open(path, encoding="utf-8") as f:
        rows = [json.loads(line) for _, line in zip(range(count), f)]
    if form == "plain":
        return ["\n\n".join(r["question"] + "\n" + r["answer"] for r in rows) + "\n"]
    return [f"<|im_start|>user\n{r['question']}<|im_end|>\n<|im_start|>assistant\n{r['answer']}<|im_end|>\n"
            for r in rows]


def windows(spillway, model, form, some, n):
    """Token arrays of at most n; --special reads a file's BOS and, in chats, the text of special tokens."""
    out = []
    for text in some:
        flags = ["--special"] if form == "chat" else []
        run = subprocess.run([spillway, "tokenize", "-m", model, *flags], input=text.encode(),
                             stdout=subprocess.PIPE, check=True)
        ids = np.array([int(i) for i in run.stdout.split(b",")])
        out += [ids[at:at + n] for at in range(0, len(ids) - 1, n)]
    return out


def engine(spillway, model, ids, kv, folder):
    path = os.path.join(folder, "logits")
    subprocess.run([spillway, "eval", "-m", model, "--ids", ",".join(map(str, ids)), "--logits", path,
                    "--kv", kv, "--quiet"], check=True)
    return np.fromfile(path, np.float32).reshape(len(ids), -1).astype(np.float64)


def log_probabilities(logits):
    z = logits[:-1] - logits[:-1].max(axis=-1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


def divergence(p, q):
    return (np.exp(p) * (p - q)).sum(axis=-1)


class Tally:
    def __init__(self):
        self.sums, self.n = {}, 0

    def add(self, what, values):
        self.sums[what] = self.sums.get(what, 0.0) + float(np.sum(values))

    def mean(self, what):
        return self.sums[what] / self.n

    def percent(self, what):
        return 100 * math.expm1(self.mean(what) - self.mean("float64"))

    def error(self, what):
        """Standard error of percent()."""
        mean = self.mean(what) - self.mean("float64")
        return 100 * math.sqrt((self.mean(what + " square") - mean * mean) / self.n)


def measure(spillway, path, form, some, n, folder):
    kinds = {"float64": Model(path), "acts": Model(path, ALL), "kv": Model(path, kv=True),
             "both": Model(path, ALL, kv=True)}
    t = Tally()
    for ids in windows(spillway, path, form, some, n):
        p = {name: log_probabilities(m.logits(ids)) for name, m in kinds.items()}
        for kv in ("f32", "f16"):
            p[kv] = log_probabilities(engine(spillway, path, ids, kv, folder))
        loss = {name: -lp[np.arange(len(ids) - 1), ids[1:]] for name, lp in p.items()}
        for name, values in loss.items():
            t.add(name, values)
            t.add(name + " square", (values - loss["float64"]) ** 2)
        t.add("kl", divergence(p["float64"], p["f32"]))
        t.add("kl acts", divergence(p["float64"], p["acts"]))
        t.add("kl rest", divergence(p["acts"], p["f32"]))
        t.add("same", p["float64"].argmax(axis=-1) == p["f32"].argmax(axis=-1))
        t.n += len(ids) - 1
    return t


def measure_parts(spillway, path, form, some, n):
    exact, t = Model(path), Tally()
    kinds = {name: Model(path, parts) for name, parts in PARTS.items()}
    kinds["all"] = Model(path, ALL)
    kinds["all_same_experts"] = Model(path, ALL, follow=exact)
    for ids in windows(spillway, path, form, some, n):
        p = log_probabilities(exact.logits(ids))
        for name, model in kinds.items():
            t.add(name, divergence(p, log_probabilities(model.logits(ids))))
        t.n += len(ids) - 1
    return t


def main():
    p = argparse.ArgumentParser(description="the engine's perplexity and a float64 reference's")
    p.add_argument("spillway")
    p.add_argument("jsonl")
    p.add_argument("models", nargs="+")
    p.add_argument("--form", choices=["plain", "chat"], default="plain")
    p.add_argument("--count", type=int, default=40)
    p.add_argument("--window", type=int, default=256)
    p.add_argument("--parts", action="store_true")
    a = p.parse_args()
    some = texts(a.jsonl, a.form, a.count)
    if a.parts:
        print("model,form,tokens," + ",".join([*PARTS, "all", "all_same_experts"]))
        for path in a.models:
            t = measure_parts(a.spillway, path, a.form, some, a.window)
            print(",".join([os.path.basename(path), a.form, str(t.n), *(f"{v / t.n:.2e}" for v in t.sums.values())]),
                  flush=True)
        return 0
    print("model,form,tokens,ppl_float64,ppl_f32kv,ppl_f16kv,f32kv_percent,f32kv_error,f16kv_percent,"
          "f16kv_error,ref_acts_percent,ref_kv_percent,ref_both_percent,kl,kl_acts,kl_rest,same_top")
    with tempfile.TemporaryDirectory() as folder:
        for path in a.models:
            t = measure(a.spillway, path, a.form, some, a.window, folder)
            ppl = [math.exp(t.mean(k)) for k in ("float64", "f32", "f16")]
            percent = [t.percent("f32"), t.error("f32"), t.percent("f16"), t.error("f16"),
                       t.percent("acts"), t.percent("kv"), t.percent("both")]
            print(",".join([os.path.basename(path), a.form, str(t.n), *(f"{v:.4f}" for v in ppl),
                            *(f"{v:+.3f}" for v in percent),
                            *(f"{t.mean(k):.2e}" for k in ("kl", "kl acts", "kl rest")),
                            f"{t.mean('same'):.4f}"]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
