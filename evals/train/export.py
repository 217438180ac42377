"""Writes networks as GGUF, in the layout of published qwen3, qwen3moe and llama files; EAGLE heads as README.md says.

    export.py NETWORK.pt VOCAB OUT.gguf (f16|q8_0) --name NAME              VOCAB: vocab.json or a GGUF file
    export.py HEAD.pt TARGET.gguf OUT.gguf (f16|q8_0) --name NAME           an EAGLE head and its target

From a GGUF file, all tokenizer values and the context length are copied."""

import hashlib

import gguf
import numpy as np
import torch

from bpe import vocabulary
from files import arguments, is_head, load, names

TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
KINDS = {"f16": gguf.GGMLQuantizationType.F16, "q8_0": gguf.GGMLQuantizationType.Q8_0}


def write(out, arch, name, s, fill, tensors, kind):
    """Writes a GGUF file with the keys of shape s, the keys that fill adds, and tensors {name: Tensor}."""
    g = gguf.GGUFWriter(out, arch)
    g.add_name(name)
    g.add_embedding_length(s.d_model)
    g.add_block_count(s.n_layer)
    g.add_feed_forward_length(s.d_ff)
    g.add_head_count(s.n_head)
    g.add_head_count_kv(s.n_kv)
    g.add_key_length(s.d_head)
    g.add_value_length(s.d_head)
    g.add_layer_norm_rms_eps(s.eps)
    g.add_rope_freq_base(s.theta)
    fill(g)
    for theirs, t in tensors.items():
        a = t.detach().float().cpu().numpy()
        if a.ndim == 1 or "gate_inp" in theirs:
            g.add_tensor(theirs, a)
        elif kind == "f16":
            g.add_tensor(theirs, a.astype(np.float16))
        else:
            g.add_tensor(theirs, gguf.quants.quantize(a, KINDS[kind]), raw_dtype=KINDS[kind])
    g.write_header_to_file()
    g.write_kv_data_to_file()
    g.write_tensors_to_file()
    g.close()


def add_vocabulary(g, vocab):
    g.add_context_length(2048)
    g.add_tokenizer_model("gpt2")
    g.add_tokenizer_pre("gpt-2")
    g.add_token_list(vocab["tokens"])
    g.add_token_merges(vocab["merges"])
    g.add_token_types([gguf.TokenType.CONTROL if i < 3 else gguf.TokenType.NORMAL
                       for i in range(len(vocab["tokens"]))])
    g.add_bos_token_id(0)
    g.add_eos_token_id(2)
    g.add_pad_token_id(0)
    g.add_add_bos_token(False)
    g.add_chat_template(TEMPLATE)


def copy_vocabulary(g, path):
    add_context(g, path)
    for name, f in gguf.GGUFReader(path).fields.items():
        if name.startswith("tokenizer."):
            g.add_key_value(name, f.contents(), f.types[0], f.types[-1] if len(f.types) > 1 else None)


def add_context(g, path):
    fields = gguf.GGUFReader(path).fields
    g.add_context_length(fields[fields["general.architecture"].contents() + ".context_length"].contents())


def write_model(model, vocab, out, kind, name):
    """vocab: the contents of a vocab.json, or the path of a GGUF file."""
    s = model.s

    def fill(g):
        if s.n_expert:
            g.add_expert_count(s.n_expert)
            g.add_expert_used_count(s.n_used)
            g.add_expert_feed_forward_length(s.d_ff)
        (copy_vocabulary if isinstance(vocab, str) else add_vocabulary)(g, vocab)
    weights = model.state_dict()
    tensors = {theirs: weights[ours] for ours, theirs in names(s).items()}
    if torch.equal(tensors["output.weight"], tensors["token_embd.weight"]):
        del tensors["output.weight"]            # tied: readers take the embedding
    arch = "llama" if s.family == "llama" else "qwen3moe" if s.n_expert else "qwen3"
    write(out, arch, name, s, fill, tensors, kind)


def write_eagle(head, target_path, out, kind, name):
    with open(target_path, "rb") as f:
        digest = hashlib.file_digest(f, "sha256").hexdigest()

    def fill(g):
        add_context(g, target_path)
        g.add_vocab_size(head.target[0].s.n_vocab)
        g.add_string("eagle.target.sha256", digest)
    weights = head.state_dict()
    write(out, "eagle", name, head.s, fill,
          {theirs: weights[ours] for ours, theirs in names(head.s, "eagle").items()}, kind)


def main():
    p = arguments(__doc__)
    p.add_argument("network")
    p.add_argument("vocab")
    p.add_argument("out")
    p.add_argument("kind", choices=KINDS)
    p.add_argument("--name", required=True)
    a = p.parse_args()
    if is_head(a.network):                      # only an EAGLE head uses the target's weights: load them
        write_eagle(load(a.network, load(a.vocab)), a.vocab, a.out, a.kind, a.name)
    else:
        write_model(load(a.network), a.vocab if a.vocab.endswith(".gguf") else vocabulary(a.vocab), a.out, a.kind,
                    a.name)


if __name__ == "__main__":
    main()
