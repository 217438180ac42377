"""Reads and writes the files of training: networks, token files, documents.

A network is a checkpoint of these scripts (.pt: shape and weights in half precision) or a GGUF file of
architecture qwen3, qwen3moe or llama in any quantisation, so that drafters can be trained for a published model."""

import argparse
import json
import os

import numpy as np
import torch

from bpe import END, EOT, START
from model import Eagle, Model, Shape

HERE = os.path.dirname(os.path.abspath(__file__))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# tensors of a layer: our name, GGUF's name
LAYER = [("n1", "attn_norm"), ("n2", "ffn_norm"), ("attention.q", "attn_q"), ("attention.k", "attn_k"),
         ("attention.v", "attn_v"), ("attention.o", "attn_output")]
QK_NORMS = [("attention.q_norm", "attn_q_norm"), ("attention.k_norm", "attn_k_norm")]
DENSE = [("ffn.gate", "ffn_gate"), ("ffn.up", "ffn_up"), ("ffn.down", "ffn_down")]
EXPERTS = [("ffn.router", "ffn_gate_inp"), ("ffn.gate", "ffn_gate_exps"), ("ffn.up", "ffn_up_exps"),
           ("ffn.down", "ffn_down_exps")]


def arguments(doc):
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def names(s, arch="qwen3"):
    """{our tensor name: GGUF's} of a Model or, for arch eagle, of an Eagle."""
    if arch == "eagle":
        return {"fc.weight": "fc.weight", "norm.weight": "output_norm.weight"} | {
            f"layer.{ours}.weight": f"blk.0.{theirs}.weight" for ours, theirs in LAYER + QK_NORMS + DENSE}
    out = {"embed.weight": "token_embd.weight", "head.weight": "output.weight",
           "norm.weight": "output_norm.weight"}
    for i in range(s.n_layer):
        for ours, theirs in LAYER + QK_NORMS * (s.family == "qwen3") + (EXPERTS if s.n_expert else DENSE):
            bare = s.n_expert and ours in ("ffn.gate", "ffn.up", "ffn.down")
            out[f"layers.{i}.{ours}{'' if bare else '.weight'}"] = f"blk.{i}.{theirs}.weight"
    return out


def read_shape(name, **given):
    """Reads shapes/NAME.json, or a path, and replaces the given numbers."""
    path = name if name.endswith(".json") else f"{HERE}/shapes/{name}.json"
    with open(path, encoding="utf-8") as f:
        return Shape(**json.load(f) | given)


def read_gguf(path):
    import gguf
    reader = gguf.GGUFReader(path)
    arch = reader.fields["general.architecture"].contents()
    if arch not in ("qwen3", "qwen3moe", "llama", "eagle"):
        raise SystemExit(f"{path}: architecture {arch}; these scripts support qwen3, qwen3moe, llama and eagle")

    def key(name, default=None):
        field = reader.fields.get(f"{arch}.{name}")
        return field.contents() if field else default
    tensors = {t.name: t for t in reader.tensors}
    if "rope_freqs.weight" in tensors or key("rope.scaling.type", "none") != "none":
        raise SystemExit(f"{path}: these scripts do not support scaled rotary positions")
    n_expert = key("expert_count", 0)
    n_vocab = tensors["token_embd.weight"].shape[1] if arch != "eagle" else key("vocab_size")
    s = Shape(n_vocab=int(n_vocab), d_model=key("embedding_length"),
              n_layer=key("block_count"), n_head=key("attention.head_count"),
              n_kv=key("attention.head_count_kv"), n_expert=n_expert, n_used=key("expert_used_count", 0),
              d_head=key("attention.key_length", key("embedding_length") // key("attention.head_count")),
              d_ff=key("expert_feed_forward_length" if n_expert else "feed_forward_length", key("feed_forward_length")),
              family="llama" if arch == "llama" else "qwen3",
              theta=key("rope.freq_base", 10000.), eps=key("attention.layer_norm_rms_epsilon", 1e-6))
    weights = {}
    for ours, theirs in names(s, arch).items():
        t = tensors["token_embd.weight" if theirs == "output.weight" and theirs not in tensors else theirs]
        values = gguf.quants.dequantize(t.data, t.tensor_type)
        weights[ours] = torch.from_numpy(np.array(values, dtype=np.float32))
    return s, weights


def is_head(path):
    """Is the checkpoint an EAGLE head? (Loading one needs its target.)"""
    return "fc.weight" in torch.load(path, map_location="cpu", mmap=True, weights_only=True)["weights"]


def load(path, target=None):
    """Loads the network of a .pt or .gguf file for inference; an EAGLE head needs its target."""
    if path.endswith(".gguf"):
        s, weights = read_gguf(path)
    else:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        s, weights = Shape(**saved["shape"]), saved["weights"]
    net = Eagle(s, target) if "fc.weight" in weights else Model(s)
    net.load_state_dict({k: w.float() for k, w in weights.items()})
    return net.eval().requires_grad_(False).to(DEVICE)


def save(net, path):
    weights = {k: w.half().cpu() for k, w in net.state_dict().items()}
    torch.save({"shape": dict(net.s.__dict__), "weights": weights}, path + ".new")
    os.replace(path + ".new", path)


def documents(path, n_max=None):
    """Reads the documents of a .ids file or a folder of them as token arrays without <|endoftext|>, cut at n_max."""
    paths = [path]
    if os.path.isdir(path):
        paths = [f"{path}/{name}" for name in sorted(os.listdir(path)) if name.endswith(".ids")]
    ids = np.concatenate([np.fromfile(p, dtype=np.int32) for p in paths])
    ends = np.flatnonzero(ids == EOT)
    starts = np.concatenate(([0], ends[:-1] + 1))
    return [ids[a:b][:n_max] for a, b in zip(starts, ends) if b > a + 1]


def answer_at(ids):
    """Index of the first token that drafters learn: in a chat, the first token of the assistant's answer."""
    if ids[0] != START:
        return 0
    ends = np.flatnonzero(ids == END)
    return min(len(ids) - 1, int(ends[0]) + 5) if len(ends) else len(ids) - 1
