#!/usr/bin/env python3
"""A forward pass in float64 over weights dequantised from a GGUF file: the reference for the engine.

Written from the published descriptions of the families; shares no code with the engine.  The gguf package
decodes the weights, numpy computes, and all intermediate values are float64.  Input: a model (llama, qwen2,
qwen3, qwen3moe) and tokens.  Output: perplexity or logits.

  reference.py MODEL perplexity IDS [--window N]        IDS: a file, comma separated, as of `tokenize`
  reference.py MODEL logits IDS OUT                     float64 [n_tok][n_vocab]
  reference.py MODEL golden LOGITS FIXTURE              distance from transformers' float32 logits

Windows are those of `spillway eval --text`: N tokens each, with an empty context at the start; every token
except the first of a window is counted.

The engine rounds in two places where this reference does not.  Each rounding can be switched on here, to
measure how much of a difference it explains:

  --acts   activations of products with quantised weights are rounded to int8 codes, one scale for 32 (Q8_0)
           or 256 (k-quants) values, scale = largest magnitude / 127; with parts of tensor names
           (attn_output, _exps ...), only in products with those tensors
  --kv     keys and values are rounded to half precision
"""

import argparse
import math
import sys

import gguf
import numpy as np

ACT_BLOCK = {"Q8_0": 32, "Q4_K": 256, "Q6_K": 256}
ALL = ("",)


class Model:
    """acts: parts of the names of tensors whose products read int8 activations; follow: a model whose
    last choice of experts is used instead of this model's own."""

    def __init__(self, path, acts=(), kv=False, follow=None):
        self.acts, self.kv, self.follow, self.chosen = acts, kv, follow, {}
        reader = gguf.GGUFReader(path)
        self.meta = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("tokenizer.ggml.")}
        self.format, self.weight = {}, {}
        for t in reader.tensors:
            shape = [int(n) for n in reversed(t.shape)]
            self.format[t.name] = t.tensor_type.name
            values = gguf.quants.dequantize(t.data, t.tensor_type)
            self.weight[t.name] = np.asarray(values, np.float64).reshape(shape)
        self.arch = self.meta["general.architecture"]
        if self.arch not in ("llama", "qwen2", "qwen3", "qwen3moe"):
            sys.exit(f"{path}: architecture {self.arch} is not supported here")
        self.read_sizes()

    def get(self, key, fallback=None):
        value = self.meta.get(f"{self.arch}.{key}", fallback)
        if value is None:
            sys.exit(f"{self.arch}.{key} is missing")
        return value

    def read_sizes(self):
        self.n_layer, self.n_head = self.get("block_count"), self.get("attention.head_count")
        self.n_kv = self.get("attention.head_count_kv", self.n_head)
        self.d_head = self.get("attention.key_length", self.get("embedding_length") // self.n_head)
        self.eps = self.get("attention.layer_norm_rms_epsilon")
        self.n_expert = self.get("expert_count", 0)
        self.n_used = self.get("expert_used_count", 0)
        pair = np.arange(0, self.get("rope.dimension_count", self.d_head), 2)
        freq = float(self.get("rope.freq_base", 10000.0)) ** (-pair / (2 * len(pair)))
        scaling = self.get("rope.scaling.type", "none")
        if scaling == "linear":
            freq = freq / self.get("rope.scaling.factor")
        elif scaling != "none":
            sys.exit(f"rope scaling {scaling} is not supported here")
        if "rope_freqs.weight" in self.weight:
            freq = freq / self.weight["rope_freqs.weight"]
        self.freq = freq

    # ---- pieces ------------------------------------------------------------------------------------

    def product(self, name, x, expert=None):
        w = self.weight[name] if expert is None else self.weight[name][expert]
        block = ACT_BLOCK.get(self.format[name])
        y = (coded(x, block) if block and any(part in name for part in self.acts) else x) @ w.T
        bias = name.replace(".weight", ".bias")
        return y + self.weight[bias] if bias in self.weight else y

    def norm(self, name, x):
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.eps) * self.weight[name]

    def rotate(self, x):
        """x [n_tok][heads][d_head]. In llama files a pair is two neighbouring values; in others value i is paired with
    value i + d_head / 2."""
        n = len(self.freq)
        angle = np.arange(len(x))[:, None, None] * self.freq
        co, si = np.cos(angle), np.sin(angle)
        first, second = ((slice(0, 2 * n, 2), slice(1, 2 * n, 2)) if self.arch == "llama"
                         else (slice(0, n), slice(n, 2 * n)))
        out = x.copy()
        out[..., first] = x[..., first] * co - x[..., second] * si
        out[..., second] = x[..., first] * si + x[..., second] * co
        return out

    def attention(self, layer, x):
        at, n_tok = f"blk.{layer}.attn_", len(x)
        x = self.norm(at + "norm.weight", x)
        q = self.product(at + "q.weight", x).reshape(n_tok, self.n_head, self.d_head)
        k = self.product(at + "k.weight", x).reshape(n_tok, self.n_kv, self.d_head)
        v = self.product(at + "v.weight", x).reshape(n_tok, self.n_kv, self.d_head)
        if at + "q_norm.weight" in self.weight:
            q, k = self.norm(at + "q_norm.weight", q), self.norm(at + "k_norm.weight", k)
        q, k = self.rotate(q), self.rotate(k)
        if self.kv:
            k, v = (a.astype(np.float16).astype(np.float64) for a in (k, v))
        k, v = (np.repeat(a, self.n_head // self.n_kv, axis=1) for a in (k, v))
        score = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(self.d_head)
        score[:, np.triu(np.ones((n_tok, n_tok), bool), 1)] = -np.inf
        out = np.einsum("hij,jhd->ihd", softmax(score), v)
        return self.product(at + "output.weight", out.reshape(n_tok, -1))

    def feed_forward(self, layer, x):
        at = f"blk.{layer}.ffn_"
        x = self.norm(at + "norm.weight", x)
        if not self.n_expert:
            return self.network(at, "", x, None)
        p = softmax(self.product(at + "gate_inp.weight", x))
        chosen = (self.follow.chosen[layer] if self.follow
                  else np.argsort(-p, axis=-1, kind="stable")[:, :self.n_used])
        self.chosen[layer] = chosen
        weight = np.take_along_axis(p, chosen, axis=-1)
        if self.get("expert_weights_norm", True):
            weight = weight / weight.sum(axis=-1, keepdims=True)
        out = np.zeros_like(x)
        for expert in range(self.n_expert):
            row, choice = np.nonzero(chosen == expert)
            if len(row):
                out[row] += weight[row, choice, None] * self.network(at, "_exps", x[row], expert)
        return out

    def network(self, at, kind, x, expert):
        gate = self.product(f"{at}gate{kind}.weight", x, expert)
        up = self.product(f"{at}up{kind}.weight", x, expert)
        return self.product(f"{at}down{kind}.weight", gate / (1 + np.exp(-gate)) * up, expert)

    # ---- command line ---------------------------------------------------------------------------------

    def logits(self, tokens):
        x = self.weight["token_embd.weight"][tokens]
        for layer in range(self.n_layer):
            x = x + self.attention(layer, x)
            x = x + self.feed_forward(layer, x)
        head = "output.weight" if "output.weight" in self.weight else "token_embd.weight"
        return self.product(head, self.norm("output_norm.weight", x))

    def losses(self, tokens, window):
        """-log p of every counted token."""
        out = []
        for at in range(0, len(tokens) - 1, window):
            ids = tokens[at:at + window]
            z = self.logits(ids)[:-1]
            most = z.max(axis=-1)
            total = np.log(np.exp(z - most[:, None]).sum(axis=-1)) + most
            out.append(total - z[np.arange(len(ids) - 1), ids[1:]])
        return np.concatenate(out)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def coded(x, block):
    """x rounded to int8 codes and back, with the engine's float32 steps."""
    b = x.astype(np.float32).reshape(-1, block)
    most = np.abs(b).max(axis=-1, keepdims=True)
    code = np.rint(b * (np.float32(127) / np.where(most > 0, most, 1)))
    return (code.astype(np.float64) * (most / np.float32(127))).reshape(x.shape)


def read_ids(path):
    with open(path, encoding="ascii") as f:
        return np.array([int(i) for i in f.read().split(",")])


def golden(model, logits_path, fixture):
    """Largest difference from the float32 logits of the transformers package, divided by the largest logit."""
    with open(fixture, encoding="utf-8") as f:
        tokens = next(line for line in f if line.startswith("tokens ")).split()[1:]
    want = np.fromfile(logits_path, np.float32).reshape(len(tokens), -1).astype(np.float64)
    difference = np.abs(model.logits(np.array(tokens, int)) - want).max(axis=-1)
    return (difference / np.abs(want).max(axis=-1)).max()


def main():
    p = argparse.ArgumentParser(description="perplexity or logits of a GGUF model in float64")
    p.add_argument("model")
    p.add_argument("what", choices=["perplexity", "logits", "golden"])
    p.add_argument("input")
    p.add_argument("output", nargs="?")
    p.add_argument("--window", type=int, default=512)
    p.add_argument("--acts", nargs="*", metavar="PART")
    p.add_argument("--kv", action="store_true")
    a = p.parse_args()
    model = Model(a.model, ALL if a.acts == [] else a.acts or (), a.kv)
    if a.what == "golden":
        print(f"{a.model}: largest difference / largest logit {golden(model, a.input, a.output):.1e}")
    elif a.what == "logits":
        model.logits(read_ids(a.input)).tofile(a.output)
    else:
        loss = model.losses(read_ids(a.input), a.window)
        print(f"perplexity {math.exp(loss.mean()):.6f}  (loss {loss.mean():.8f} over {len(loss)} tokens)")


if __name__ == "__main__":
    main()
