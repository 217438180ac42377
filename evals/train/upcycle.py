"""Makes a mixture-of-experts model of a dense one: it says the same, at any size.

    upcycle.py DENSE.gguf OUT.gguf IDS [--experts 32] [--used 4]

Every expert is the dense model's feed-forward network with its neurons in another order, moved as whole blocks, so no weight is
requantised.  The weights of the chosen experts sum to 1, so whichever experts are chosen, the logits are the dense model's but for
rounding.  A layer's router is made of centroids of what its feed-forward network reads in a real text, so that the choices are skewed
and change slowly, as those of trained models.  DENSE is a file of the llama family; OUT is one with experts, as mixtral's are.  IDS
is a file of token ids, as `spillway tokenize` prints them; the first 2,048 are used.

It serves to measure caching, streaming and speculation with real words on a machine that is too small for a published model with
experts.  Its experts know the same, so it says nothing about the quality of answers when experts are left out."""

import sys

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize

from files import arguments

BLOCK = 32  # inputs of a quantised block
MOST_ID = 2048
PARTS = ("ffn_gate", "ffn_up", "ffn_down")


class Dense:
    """The dense model, and what its feed-forward networks read in a text."""

    def __init__(self, path):
        reader = GGUFReader(path)
        self.fields, self.tensors = reader.fields, {t.name: t for t in reader.tensors}
        self.arch = self.key("general.architecture")
        if self.arch != "llama" or f"{self.arch}.expert_count" in self.fields:
            raise SystemExit(f"{path}: architecture {self.arch}; this script takes dense models of the llama family")
        self.n_layer, self.d_model = self.key("llama.block_count"), self.key("llama.embedding_length")
        self.d_ff, self.n_head = self.key("llama.feed_forward_length"), self.key("llama.attention.head_count")
        self.n_kv, self.eps = self.key("llama.attention.head_count_kv"), self.key("llama.attention.layer_norm_rms_epsilon")
        self.theta, self.d_head = self.key("llama.rope.freq_base"), self.d_model // self.n_head
        for part in PARTS:
            if self.tensors[f"blk.0.{part}.weight"].tensor_type.name not in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"):
                raise SystemExit(f"{path}: {part} has a format whose blocks are longer than {BLOCK}; neurons cannot be moved")

    def key(self, name):
        return self.fields[name].contents()

    def values(self, name):
        t = self.tensors[name]
        return dequantize(t.data, t.tensor_type).astype(np.float32).reshape([int(n) for n in reversed(t.shape)])

    def norm(self, x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * weight

    def rotate(self, x):
        """x: [n][heads][d_head], rotated in neighbouring pairs."""
        angle = np.arange(len(x))[:, None] * self.theta ** (-np.arange(0, self.d_head, 2) / self.d_head)
        c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
        out = np.empty_like(x)
        out[..., 0::2], out[..., 1::2] = x[..., 0::2] * c - x[..., 1::2] * s, x[..., 0::2] * s + x[..., 1::2] * c
        return out

    def attend(self, h, layer):
        n = len(h)
        q, k, v = (h @ self.values(f"blk.{layer}.attn_{m}.weight").T for m in "qkv")
        q = self.rotate(q.reshape(n, self.n_head, self.d_head))
        k = np.repeat(self.rotate(k.reshape(n, self.n_kv, self.d_head)), self.n_head // self.n_kv, 1)
        v = np.repeat(v.reshape(n, self.n_kv, self.d_head), self.n_head // self.n_kv, 1)
        score = np.einsum("thd,shd->hts", q, k) / np.sqrt(self.d_head)
        score = np.where(np.tril(np.ones((n, n), bool)), score, -np.inf)
        weight = np.exp(score - score.max(-1, keepdims=True))
        weight /= weight.sum(-1, keepdims=True)
        return np.einsum("hts,shd->thd", weight, v).reshape(n, -1) @ self.values(f"blk.{layer}.attn_output.weight").T

    def ffn_inputs(self, ids):
        """Yields [n][d_model] for each layer."""
        x = self.values("token_embd.weight")[ids]
        for layer in range(self.n_layer):
            x = x + self.attend(self.norm(x, self.values(f"blk.{layer}.attn_norm.weight")), layer)
            h = self.norm(x, self.values(f"blk.{layer}.ffn_norm.weight"))
            yield h
            gate, up, down = (self.values(f"blk.{layer}.{part}.weight") for part in PARTS)
            g = h @ gate.T
            x = x + (g / (1 + np.exp(-g)) * (h @ up.T)) @ down.T


def make_router(h, n_expert, rng):
    """Rows [n_expert][d_model]: centroids of h by cosine, without the part that all of h share."""
    mean = h.mean(0)
    h = h - mean
    c = h[rng.choice(len(h), n_expert, replace=False)].copy()
    for _ in range(8):
        own = (h @ c.T / (np.linalg.norm(c, axis=1) + 1e-9)).argmax(1)
        for e in range(n_expert):
            c[e] = h[own == e].mean(0) if (own == e).any() else h[rng.integers(len(h))]
    c /= np.linalg.norm(c, axis=1, keepdims=True)
    c *= 4 / (np.abs(h @ c.T).mean() + 1e-9)  # logits of this mean size: neither all experts alike nor one with all the weight
    return (c - np.outer(c @ mean, mean) / (mean @ mean)).astype(np.float32)


def shuffled(t, is_down, orders):
    """The tensor's bytes once for each order of its blocks of neurons."""
    n_block = len(orders[0])
    if is_down:
        blocks = t.data.reshape(t.data.shape[0], n_block, -1)
        return np.stack([blocks[:, order].reshape(t.data.shape) for order in orders])
    blocks = t.data.reshape(n_block, BLOCK, -1)
    return np.stack([blocks[order].reshape(t.data.shape) for order in orders])


def copy_fields(writer, fields, replaced=None):
    """Copies the values of a file; replaced: {name: another value}."""
    for name, field in fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kind, value = field.types[0], (replaced or {}).get(name, field.contents())
            writer.add_key_value(name, value, kind, field.types[1] if kind == GGUFValueType.ARRAY else None)


def main():
    p = arguments(__doc__)
    for name in ("dense", "out", "ids"):
        p.add_argument(name)
    p.add_argument("--experts", type=int, default=32)
    p.add_argument("--used", type=int, default=4)
    a = p.parse_args()
    dense, rng = Dense(a.dense), np.random.default_rng(1)
    with open(a.ids, encoding="utf-8") as f:
        ids = np.array([int(i) for i in f.read().replace(",", " ").split()][:MOST_ID])
    if len(ids) < 8 * a.experts:
        raise SystemExit(f"{a.ids}: {len(ids)} ids are too few for {a.experts} centroids")
    writer = GGUFWriter(a.out, "llama")
    copy_fields(writer, dense.fields)
    writer.add_uint32("llama.expert_count", a.experts)
    writer.add_uint32("llama.expert_used_count", a.used)
    for layer, h in enumerate(dense.ffn_inputs(ids)):
        orders = [rng.permutation(dense.d_ff // BLOCK) for _ in range(a.experts)]
        for part in PARTS:
            t = dense.tensors[f"blk.{layer}.{part}.weight"]
            writer.add_tensor(f"blk.{layer}.{part}_exps.weight", shuffled(t, part == "ffn_down", orders), raw_dtype=t.tensor_type)
        writer.add_tensor(f"blk.{layer}.ffn_gate_inp.weight", make_router(h, a.experts, rng))
        print(f"layer {layer + 1} of {dense.n_layer}", end="\r", file=sys.stderr)
    for t in dense.tensors.values():
        if not any(t.name.endswith(f".{part}.weight") for part in PARTS):
            writer.add_tensor(t.name, t.data, raw_dtype=t.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
