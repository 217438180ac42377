#!/usr/bin/env python3
"""Random configurations of every family, read by the transformers package and by the engine: equal logits or a refusal.

A developer's tool, run by hand and before a release.  For each family it draws small random models as folders of
float32 safetensors.  Their config.json varies like published ones and more: RoPE scalings under both names and at
both places, sliding windows, omitted fields, fields of other families, tied embeddings beside an own lm_head.weight,
tensors that the configuration switches off.  transformers loads the folder (AutoModelForCausalLM, eager attention) and
computes the logits of 96 random tokens; so does `spillway eval --ids .. --logits .. --kv f32`.

  random_configs.py SPILLWAY [--count 150] [--only FAMILY[,FAMILY]] [--seed 1] [--keep FOLDER] [--csv FILE]

A configuration that transformers itself refuses is drawn again.  Results of a configuration:

  equal     the largest difference at any position is below 1e-4 of the largest logit (gpt_oss: 1e-2, as its experts
            exist in MXFP4 only, and products with them read activations as 8-bit codes)
  sensitive it differs, but only at positions where transformers differs from itself as much if its weights are changed
            by up to 3e-6 of their values: a router's choice between two experts with almost the same score
  refused   the engine refuses it with exit status 2 and one line, which is counted by its text
  WRONG     anything else: another difference, no line or several, another exit status

Exit status 1 if there is a WRONG one.  --keep keeps the folders of these.
"""
import argparse
import collections
import copy
import csv
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

N_TOK = 96
TOLERANCE = 1e-4
FAMILIES = ["llama", "mistral", "ministral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss",
            "glm4_moe", "minimax_m2", "deepseek_v2", "deepseek_v3", "kimi_k2", "qwen3_next", "qwen3_5_moe_text",
            "mistral4", "phimoe", "llama4_text"]
DEEPSEEK = ("deepseek_v2", "deepseek_v3", "kimi_k2")
DELTA = ("qwen3_next", "qwen3_5_moe_text")
NEWER = ("mistral4", "phimoe", "llama4_text")       # draw_newer sets what is theirs
PARTIAL = ("glm4_moe", "minimax_m2", "qwen3_next", "qwen3_5_moe_text")


# ---- drawing a configuration -----------------------------------------------------------------------

def maybe(r, p):
    return r.random() < p


def draw_rope(r, family, c):
    """RoPE settings: none, or a scaling under rope_scaling, rope_parameters or both."""
    def scaling():
        kind = r.choice(["default", "linear", "yarn", "yarn", "llama3"])
        rope = {r.choice(["rope_type", "rope_type", "type"]): kind}
        if kind != "default":
            rope["factor"] = r.choice([1.0, 2.0, 4.0, 8.5, 32])
        if kind in ("yarn", "llama3") and maybe(r, 0.8):
            rope["original_max_position_embeddings"] = r.choice([16, 32, 64, 256, 1024])
        if kind == "llama3":
            rope.update(low_freq_factor=1.0, high_freq_factor=r.choice([2.0, 4.0]))
        if kind == "yarn":
            for key, values in (("beta_fast", [16, 32.0, 64]), ("beta_slow", [1, 2.0]),
                                ("attention_factor", [0.8, 1.3]), ("truncate", [True])):
                if maybe(r, 0.2):
                    rope[key] = r.choice(values)
            for key in ("mscale", "mscale_all_dim"):
                if maybe(r, 0.5 if family in DEEPSEEK else 0.1):
                    rope[key] = r.choice([0.707, 1.0, 0.4])
            if family == "gpt_oss":
                rope["truncate"] = False
        if maybe(r, 0.4):
            rope["rope_theta"] = r.choice([100.0, 10000.0, 500000])
        if family in PARTIAL and maybe(r, 0.3):
            rope["partial_rotary_factor"] = r.choice([0.25, 0.5, 1.0])
        return rope

    if maybe(r, 0.5):
        c["rope_theta"] = r.choice([1000.0, 10000.0, 1000000.0])
    how = r.choice(["none", "new", "old", "both"])
    if how in ("new", "both"):
        c["rope_parameters"] = scaling()
    if how in ("old", "both"):
        c["rope_scaling"] = r.choice([scaling(), scaling(), scaling(), None, {}])
    if maybe(r, 0.05):
        c["original_max_position_embeddings"] = 48


def draw_windows(r, family, c):
    n = c["num_hidden_layers"]
    if maybe(r, 0.6) or family == "gpt_oss":
        c["sliding_window"] = r.choice([5, 16, 50, 200])
    elif maybe(r, 0.3):
        c["sliding_window"] = None
    if maybe(r, 0.7):
        c["use_sliding_window"] = maybe(r, 0.8)
    if maybe(r, 0.7):
        c["max_window_layers"] = r.randrange(0, n + 1)
    if maybe(r, 0.3) and family not in DELTA:
        c["layer_types"] = [r.choice(["sliding_attention", "full_attention"]) for _ in range(n)]


def draw_experts(r, family, c):
    n = r.choice([4, 6, 8, 12])
    used = r.choice([1, 2, 3])
    if family == "gpt_oss":       # all experts: rounded activations must not change a choice between them
        n = used = 4
    c["num_experts_per_tok"] = used
    if family in ("mixtral", "gpt_oss", "minimax_m2"):
        c["num_local_experts"] = n
    elif family == "glm4_moe" or family in DEEPSEEK:
        c["n_routed_experts"] = n
    else:
        c["num_experts"] = n
    if family not in ("mixtral", "gpt_oss", "minimax_m2", "olmoe"):
        c["moe_intermediate_size"] = r.choice([16, 24, 40])
    if family in ("qwen2_moe",) + DELTA:
        c["shared_expert_intermediate_size"] = r.choice([16, 40])
    if family == "glm4_moe" or family in DEEPSEEK:
        c["n_shared_experts"] = r.choice([0, 1, 1, 2])
        c["first_k_dense_replace"] = r.choice([0, 1, 1, c["num_hidden_layers"]])
        if maybe(r, 0.7):
            c["routed_scaling_factor"] = r.choice([1.0, 2.5, 0.5, 0.0] if maybe(r, 0.1) else [1.0, 2.5, 0.5])
        groups = r.choice([1, 2])
        if family != "deepseek_v2" or maybe(r, 0.7):
            c["n_group"], c["topk_group"] = groups, r.choice([1, groups])
            if used > n // groups * c["topk_group"]:
                c["topk_group"] = groups
        if family == "deepseek_v2" and maybe(r, 0.7):
            c["topk_method"] = r.choice(["greedy", "group_limited_greedy"])
    if maybe(r, 0.5):
        c["norm_topk_prob"] = maybe(r, 0.5)


def draw_newer(r, family, c):
    if family == "llama4_text":
        c["num_hidden_layers"] = r.choice([1, 3, 4, 5, 8])
    n, heads = c["num_hidden_layers"], c["num_attention_heads"]
    if family == "mistral4":
        c.update(kv_lora_rank=r.choice([16, 32]), qk_rope_head_dim=r.choice([8, 16]), v_head_dim=r.choice([16, 32]),
                 qk_nope_head_dim=r.choice([16, 32]), num_key_value_heads=heads, q_lora_rank=r.choice([None, 24, 40]),
                 n_routed_experts=8, num_experts_per_tok=r.choice([1, 2, 3]), moe_intermediate_size=r.choice([16, 40]),
                 n_shared_experts=r.choice([1, 1, 2]), first_k_dense_replace=r.choice([0, 0, 1, n]),
                 norm_topk_prob=maybe(r, 0.7), routed_scaling_factor=r.choice([1.0, 1.0, 2.5]))
        c["qk_head_dim"] = c["head_dim"] = c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
        c["n_group"] = r.choice([1, 1, 2])
        c["topk_group"] = r.choice([1, c["n_group"]])
        c["rope_parameters"] = {"rope_type": r.choice(["yarn", "yarn", "default"]), "rope_theta": r.choice([100.0, 10000.0]),
                                "factor": r.choice([2.0, 16.0]), "beta_fast": 32.0, "beta_slow": 1.0,
                                "original_max_position_embeddings": r.choice([7, 16, 32, 64]), "mscale": 1.0,
                                "mscale_all_dim": r.choice([1.0, 0.7]), "llama_4_scaling_beta": r.choice([0.1, 0.3, 0])}
        c["max_position_embeddings"] = 1024
        if maybe(r, 0.2):
            c["rope_interleave"] = maybe(r, 0.8)
    elif family == "phimoe":
        c.update(num_local_experts=r.choice([2, 4, 8]), num_experts_per_tok=2,
                 router_jitter_noise=0.1 if maybe(r, 0.05) else 0.01,
                 input_jitter_noise=r.choice([0.0, 0.01]), attention_bias=maybe(r, 0.7), lm_head_bias=maybe(r, 0.7),
                 sliding_window=r.choice([None, 5, 16, 50, 200]), rope_theta=r.choice([100.0, 10000.0]))
        if maybe(r, 0.3):
            half = c["hidden_size"] // heads // 2
            c["max_position_embeddings"] = 512
            c["rope_scaling"] = {"type": "longrope", "short_mscale": 1.243163121016122, "long_mscale": 1.243163121016122,
                                 "original_max_position_embeddings": 128, "short_factor": [1 + i / half for i in range(half)],
                                 "long_factor": [2 + i / half for i in range(half)]}
    else:
        c.update(head_dim=r.choice([8, 16, 32]), num_local_experts=r.choice([2, 4, 8]), num_experts_per_tok=r.choice([1, 1, 2]),
                 intermediate_size_mlp=r.choice([32, 56]), interleave_moe_layer_step=r.choice([1, 2, 3]),
                 use_qk_norm=maybe(r, 0.9), attention_chunk_size=r.choice([5, 16, 50, 200]), attention_bias=maybe(r, 0.1),
                 attn_temperature_tuning=maybe(r, 0.6), floor_scale=r.choice([3, 16, 50]),
                 attn_scale=r.choice([0.1, 0.4]))
        if maybe(r, 0.4):
            each_fourth = [int((i + 1) % 4 != 0) for i in range(n)]
            c["no_rope_layers"] = r.choice([each_fourth, each_fourth, each_fourth, [], [r.choice([0, 1]) for _ in range(n)]])
        elif maybe(r, 0.1):
            c["no_rope_layer_interval"] = r.choice([2, 3])
        if maybe(r, 0.3):
            c["moe_layers"] = [i for i in range(n) if maybe(r, 0.6)]
        if maybe(r, 0.3):
            c["layer_types"] = ["chunked_attention" if (i + 1) % 4 else "full_attention" for i in range(n)]
        if maybe(r, 0.4):
            c["rope_parameters"] = {"rope_type": "llama3", "factor": r.choice([8.0, 16.0]), "low_freq_factor": 1.0,
                                    "high_freq_factor": r.choice([1.5, 4.0]), "original_max_position_embeddings": r.choice([16, 64])}
            if maybe(r, 0.7):
                c["rope_parameters"]["rope_theta"] = r.choice([100.0, 500000.0])


def draw(r, family):
    heads = r.choice([2, 4] if family == "gpt_oss" else [2, 4, 6])
    d_head = r.choice([8, 16, 24, 32])
    hidden = heads * r.choice([16] if family == "gpt_oss" else [8, 16, 24])
    c = {
        "model_type": family, "hidden_size": hidden, "intermediate_size": r.choice([32, 64] if family == "gpt_oss" else [32, 48, 72]),
        "num_hidden_layers": r.choice([1, 2, 3]), "num_attention_heads": heads,
        "num_key_value_heads": r.choice([k for k in (1, 2, heads) if heads % k == 0]),
        "vocab_size": r.choice([263, 280, 301]), "max_position_embeddings": r.choice([32, 64, 128, 1024]),
        "bos_token_id": 0, "eos_token_id": 1,
    }
    if maybe(r, 0.6):
        c["rms_norm_eps"] = r.choice([1e-6, 1e-5, 1e-3, 1e-2])
    if family in DELTA:
        c["num_hidden_layers"] = r.choice([2, 3, 4, 5])
        c.update(linear_num_key_heads=2, linear_num_value_heads=r.choice([2, 4]), linear_key_head_dim=r.choice([16, 24]),
                 linear_value_head_dim=16, head_dim=r.choice([16, 32]))
        interval = r.choice([2, 4])
        how = r.choice(["interval", "types", "both", "none"])
        if how in ("interval", "both"):
            c["full_attention_interval"] = interval
        if how in ("types", "both"):
            c["layer_types"] = ["linear_attention" if (i + 1) % interval else "full_attention"
                                for i in range(c["num_hidden_layers"])]
        c["num_key_value_heads"] = r.choice([1, 2])
    if family in DEEPSEEK:
        c.update(kv_lora_rank=r.choice([16, 32]), qk_rope_head_dim=r.choice([8, 16]), v_head_dim=r.choice([16, 32]),
                 qk_nope_head_dim=r.choice([16, 32]), num_key_value_heads=heads)
        c["q_lora_rank"] = r.choice([None, 24, 40])
        if maybe(r, 0.15):
            c["rope_interleave"] = r.choice([True, False, None])
    elif family in ("llama", "mistral", "ministral", "mixtral", "qwen3", "gpt_oss", "minimax_m2"):
        if maybe(r, 0.8):
            c["head_dim"] = d_head
    elif family not in DELTA and family != "olmoe" and maybe(r, 0.4):
        c["head_dim"] = d_head
    if family not in ("mistral", "ministral", "mixtral") and maybe(r, 0.15):
        del c["num_key_value_heads"]
    if family in NEWER:
        draw_newer(r, family, c)
    else:
        draw_rope(r, family, c)
    if family in ("mistral", "ministral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "gpt_oss"):
        draw_windows(r, family, c)
    if family not in ("llama", "mistral", "ministral", "qwen2", "qwen3") + NEWER:
        draw_experts(r, family, c)
    if family == "olmoe" and maybe(r, 0.4):
        c["clip_qkv"] = 1.5
    if family == "minimax_m2" and maybe(r, 0.5):
        c["rotary_dim"] = r.choice([4, 8])
    if family in PARTIAL and maybe(r, 0.4):
        c["partial_rotary_factor"] = r.choice([0.25, 0.5, 1.0])
    if family == "glm4_moe":
        c["use_qk_norm"] = maybe(r, 0.5)
        c["attention_bias"] = maybe(r, 0.5)
        if maybe(r, 0.2):
            del c["use_qk_norm"]
        if maybe(r, 0.2):
            del c["attention_bias"]
    if family == "qwen2_moe" and maybe(r, 0.4):
        c["qkv_bias"] = maybe(r, 0.5)
    if maybe(r, 0.3):
        c["tie_word_embeddings"] = maybe(r, 0.7)
    elif maybe(r, 0.3):
        c["tie_word_embeddings"] = False
    foreign = {"clip_qkv": 0.7, "routed_scaling_factor": 1.7, "rotary_dim": 8, "use_qk_norm": True, "n_group": 2,
               "topk_group": 1, "swiglu_limit": 3.0, "partial_rotary_factor": 0.5, "sliding_window": 20,
               "use_sliding_window": True, "norm_topk_prob": True, "first_k_dense_replace": 1, "n_shared_experts": 2,
               "rope_interleave": False, "qkv_bias": False, "kv_lora_rank": 16, "num_nextn_predict_layers": 0}
    for key, value in foreign.items():
        if key not in c and maybe(r, 0.05):
            c[key] = value
    return c


# ---- weights ----------------------------------------------------------------------------------------

def fill(model, g, family):
    """Random weights with lively scores, routers and logits."""
    for name, t in model.state_dict().items():
        u = torch.rand(t.shape, generator=g) * 2 - 1
        if "norm" in name.rsplit(".", 2)[-2] and name.endswith("weight"):
            t.copy_(0.3 * u if family in DELTA and not name.endswith("linear_attn.norm.weight") else 1 + 0.3 * u)
        elif name.endswith("A_log"):
            t.copy_(2 * u)
        elif name.endswith("sinks"):
            t.copy_(2 * u)
        elif t.dim() == 1:
            t.copy_(0.3 * u)
        elif t.numel():
            n_in = t.shape[1] if family in ("gpt_oss", "llama4_text") and "experts" in name and t.dim() == 3 else t.shape[-1]
            router = name.endswith(("gate.weight", "router.weight"))
            wide = 3.0 if "embed_tokens" in name or "lm_head" in name else 2.5 if router else 1.5
            t.copy_(u * (3.0 / n_in) ** 0.5 * wide)


FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def to_mxfp4(state, g):
    """Replaces gpt-oss's expert matrices by random MXFP4 blocks.  Returns what to save, and what transformers gets."""
    saved, loaded = {}, {}
    for name, t in state.items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            saved[name] = loaded[name] = t
            continue
        n_expert, n_in, n_out = t.shape
        codes = torch.randint(0, 16, (n_expert, n_out, n_in // 32, 32), generator=g, dtype=torch.uint8)
        scales = torch.randint(117, 121, (n_expert, n_out, n_in // 32), generator=g, dtype=torch.uint8)
        saved[name + "_blocks"] = (codes[..., 0::2] | codes[..., 1::2] << 4).contiguous()
        saved[name + "_scales"] = scales
        values = FP4[codes.long()] * torch.exp2(scales.float() - 127)[..., None]
        loaded[name] = values.reshape(n_expert, n_out, n_in).transpose(1, 2).contiguous()
    return saved, loaded


def by_expert(state):
    """Llama 4's expert matrices, which transformers stacks with inputs first, as published quantised folders have them."""
    out = {}
    for name, t in state.items():
        at = name.find("experts.gate_up_proj"), name.find("experts.down_proj")
        if max(at) < 0:
            out[name] = t
            continue
        base = name[:max(at)] + "experts."
        for e in range(t.shape[0]):
            parts = zip(("gate_proj", "up_proj"), t[e].T.chunk(2)) if at[0] >= 0 else [("down_proj", t[e].T)]
            for part, w in parts:
                out[f"{base}{e}.{part}.weight"] = w.contiguous()
    return out


def more_tensors(r, g, c, family, state):
    """Tensors beside those of the configuration: an own output matrix, switched-off biases and norms."""
    def like(*shape):
        return (torch.rand(shape, generator=g) * 2 - 1) * 0.5

    out = dict(state)
    embed = out["model.embed_tokens.weight"]
    if c.get("tie_word_embeddings"):
        how = r.choice(["none", "same", "other", "only"])
        if how == "same":
            out["lm_head.weight"] = embed.clone()
        if how == "other":
            out["lm_head.weight"] = like(*embed.shape)
        if how == "only":
            out["lm_head.weight"] = out.pop("model.embed_tokens.weight")
    off = family in ("llama", "qwen3", "qwen3_moe", "olmoe", "glm4_moe") and not c.get("attention_bias")
    if (off or (family == "qwen2_moe" and c.get("qkv_bias") is False)) and maybe(r, 0.15):
        for name in list(out):
            if re.search(r"self_attn\.[qkv]_proj\.weight$", name):
                out[name.replace(".weight", ".bias")] = like(out[name].shape[0])
    if family == "glm4_moe" and not c.get("use_qk_norm") and maybe(r, 0.3):
        for i in range(c["num_hidden_layers"]):
            q = f"model.layers.{i}.self_attn."
            d_head = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
            out[q + "q_norm.weight"], out[q + "k_norm.weight"] = 1 + like(d_head), 1 + like(d_head)
    return out


def tokenizer():
    """A byte-level vocabulary of 258 tokens; eval --ids does not use it, but a folder needs one."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    split = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"version": "1.0", "added_tokens": [{"id": 256 + i, "content": t, "special": True, "normalized": False}
                                               for i, t in enumerate(("<|bos|>", "<|eos|>"))],
            "normalizer": None, "pre_tokenizer": split, "post_processor": None,
            "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(letters)}, "merges": []}}


# ---- one configuration ------------------------------------------------------------------------------

def build(r, g, c, family, folder):
    """Writes the folder.  Returns the model as transformers loads it from there."""
    theirs = dict(c, model_type="deepseek_v3") if family == "kimi_k2" else c
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(theirs, f)
    config = transformers.AutoConfig.from_pretrained(folder)
    kind = transformers.Mistral4ForCausalLM if family == "mistral4" else transformers.AutoModelForCausalLM
    new = kind._from_config if family == "mistral4" else kind.from_config      # no Auto class knows mistral4
    model = new(config, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        fill(model, g, family)
    model.save_pretrained(folder)
    path = os.path.join(folder, "model.safetensors")
    state = more_tensors(r, g, c, family, load_file(path))
    saved, loaded = to_mxfp4(state, g) if family == "gpt_oss" else (state, state)
    if family == "llama4_text":
        saved = by_expert(state)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(theirs, f)
    with open(os.path.join(folder, "tokenizer.json"), "w") as f:
        json.dump(tokenizer(), f)
    save_file({k: v.contiguous() for k, v in loaded.items()}, path, {"format": "pt"})
    model = kind.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager").eval()
    if saved is not loaded:
        save_file(saved, path, {"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(c, f)
    return model


def engine(spillway, folder, ids, n_vocab):
    """The engine's logits, or None with its lines and exit status."""
    out = os.path.join(folder, "logits.f32")
    run = subprocess.run([spillway, "eval", "-m", folder, "--ids", ",".join(map(str, ids)), "--logits", out, "--kv", "f32",
                          "--threads", "1", "--quiet"], capture_output=True, text=True, timeout=300)
    errors = [s for s in run.stderr.splitlines() if "error:" in s]
    if run.returncode == 0 and os.path.exists(out):
        return np.fromfile(out, np.float32).reshape(len(ids), n_vocab), errors, 0
    return None, errors, run.returncode


def apart(a, b):
    """The largest difference at each position, as a part of the largest logit of all."""
    return np.abs(a - b).max(axis=1) / np.abs(b).max()


def oracle(model, ids):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float().numpy()


def disturbed(model, theirs, ids):
    """How far tiny changes of the weights move the logits of each position, at most in 20 trials."""
    worst, g = np.zeros(len(ids)), torch.Generator().manual_seed(1)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    with torch.no_grad():
        for _ in range(20):
            for name, t in model.state_dict().items():
                t.copy_(state[name] * (1 + 3e-6 * (torch.rand(t.shape, generator=g) * 2 - 1)))
            worst = np.maximum(worst, apart(oracle(model, ids), theirs))
    return worst


def compare(model, logits, theirs, ids, family):
    most = 1e-2 if family == "gpt_oss" else TOLERANCE
    if not np.isfinite(logits).all():
        return "WRONG", float("nan")
    by = apart(logits, theirs)
    if by.max() < most:
        return "equal", by.max()
    doubt = disturbed(model, theirs, ids)
    return ("sensitive" if np.all((by < most) | (doubt > by / 10)) else "WRONG"), by.max()


def text_of(line, folder):
    return re.sub(r"\d+", "N", line.split("error:", 1)[1].strip().replace(folder, "FOLDER"))


def one(spillway, family, seed, folder):
    r, g = random.Random(seed), torch.Generator().manual_seed(seed)
    c = draw(r, family)
    ids = [r.randrange(c["vocab_size"]) for _ in range(N_TOK)]
    try:
        model = build(r, g, copy.deepcopy(c), family, folder)
        theirs = oracle(model, ids)
    except Exception as e:        # transformers refuses it, in whatever way
        return None, 0, str(e)
    if not np.isfinite(theirs).all():
        return None, 0, "its logits are not finite"
    logits, errors, status = engine(spillway, folder, ids, c["vocab_size"])
    if logits is None:
        fine = status == 2 and len(errors) == 1
        return ("refused" if fine else "WRONG"), 0, (text_of(errors[0], folder) if errors else f"status {status}")
    return *compare(model, logits, theirs, ids, family), ""


def main():
    p = argparse.ArgumentParser()
    p.add_argument("spillway")
    p.add_argument("--count", type=int, default=150)
    p.add_argument("--only")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--keep")
    p.add_argument("--csv")
    a = p.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    rows, bad, reasons = [], 0, collections.Counter()
    for family in a.only.split(",") if a.only else FAMILIES:
        count, worst, seed, drawn_again = collections.Counter(), 0.0, a.seed * 1000003, collections.Counter()
        while sum(count.values()) < a.count:
            seed += 1
            with tempfile.TemporaryDirectory() as parent:
                folder = os.path.join(parent, "model")
                what, by, text = one(a.spillway, family, seed, folder)
                if what is None:
                    drawn_again[text[:100]] += 1
                    if sum(drawn_again.values()) > 20 * a.count:
                        sys.exit(f"{family}: transformers refuses nearly all: {drawn_again.most_common(3)}")
                    continue
                count[what] += 1
                worst = max(worst, by) if what == "equal" else worst
                if what == "refused":
                    reasons[family, text] += 1
                if what == "WRONG":
                    bad += 1
                    print(f"{family} {seed}: WRONG, {by:.2e} {text} "
                          f"{open(os.path.join(folder, 'config.json')).read()}", flush=True)
                    if a.keep:
                        shutil.copytree(folder, os.path.join(a.keep, f"{family}-{seed}"), dirs_exist_ok=True)
        rows.append([family, count["equal"], count["sensitive"], count["refused"], count["WRONG"], f"{worst:.1e}",
                     sum(drawn_again.values())])
        print("{}: equal {}, sensitive {}, refused {}, WRONG {}; largest difference of an equal one {}; drawn again {}"
              .format(*rows[-1]), flush=True)
    for (family, text), n in sorted(reasons.items()):
        print(f"{family}: {n} refused: {text}")
    if a.csv:
        with open(a.csv, "w", newline="\n") as f:
            out = csv.writer(f, lineterminator="\n")
            out.writerow(["family", "equal", "sensitive", "refused", "wrong", "largest_difference", "drawn_again"])
            out.writerows(rows)
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
