"""Makes tests/real/logits.bin: what transformers computes on the weights of the GGUF file, dequantised to float32.

    pip install torch transformers gguf
    python3 tests/real/make_logits.py build/real/smollm2.gguf tests/real/logits.bin tests/real/texts/*.txt

The first 512 tokens of each text, without a BOS token; at each position the TOP likeliest next tokens with their
log-probabilities.  The file, all numbers little-endian:

    char[8]   "logits 1"
    uint32    number of texts, tokens per text, TOP
    for each text:
        uint16[tokens]       its ids
        float32[tokens]      log(sum(exp(logits))) at each position
        float64              mean of -log p of tokens 1 ..., the logarithm of the perplexity
        for each position:   uint16[TOP] ids, likeliest first; uint16[TOP] -log p * 2048
"""
import struct
import sys

import gguf
import numpy as np
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

TOKENS, TOP, STEP = 512, 64, 2048


def tensors(reader):
    for t in reader.tensors:
        yield t.name, gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32).copy()


def unpermuted(w, n_head):
    """GGUF files of this family hold the rows of Q and K with the two halves of each head interleaved."""
    n, d = w.shape
    return w.reshape(n_head, n // n_head // 2, 2, d).swapaxes(1, 2).reshape(n, d)


def model_of(path):
    r = gguf.GGUFReader(path)
    key = lambda k: r.fields["llama." + k].contents()
    c = LlamaConfig(vocab_size=key("vocab_size"), hidden_size=key("embedding_length"),
                    intermediate_size=key("feed_forward_length"), num_hidden_layers=key("block_count"),
                    num_attention_heads=key("attention.head_count"), num_key_value_heads=key("attention.head_count_kv"),
                    rms_norm_eps=key("attention.layer_norm_rms_epsilon"), max_position_embeddings=key("context_length"),
                    rope_parameters={"rope_type": "default", "rope_theta": key("rope.freq_base")}, tie_word_embeddings=True)
    part = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
            "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    state = {}
    for name, w in tensors(r):
        if name.startswith("blk."):
            _, layer, what, _ = name.split(".")
            heads = {"attn_q": c.num_attention_heads, "attn_k": c.num_key_value_heads}.get(what)
            state[f"model.layers.{layer}.{part[what]}.weight"] = torch.from_numpy(unpermuted(w, heads) if heads else w)
        else:
            state[{"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}[name]] = \
                torch.from_numpy(w)
    model = LlamaForCausalLM(c).float().eval()
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model


def main(path, out, texts):
    folder, _, name = path.rpartition("/")
    tokenizer = AutoTokenizer.from_pretrained(folder or ".", gguf_file=name)
    model = model_of(path)
    with open(out, "wb") as f:
        f.write(b"logits 1" + struct.pack("<3I", len(texts), TOKENS, TOP))
        for text in texts:
            ids = tokenizer(open(text, encoding="utf-8").read(), add_special_tokens=False)["input_ids"][:TOKENS]
            assert len(ids) == TOKENS, f"{text} has only {len(ids)} tokens"
            with torch.no_grad():
                logits = model(torch.tensor([ids])).logits[0].double()
            total = torch.logsumexp(logits, -1)
            p = logits - total[:, None]
            loss = -float(np.mean([p[i, ids[i + 1]].item() for i in range(TOKENS - 1)]))
            top = torch.topk(p, TOP, -1)
            f.write(np.array(ids, "<u2").tobytes() + total.numpy().astype("<f4").tobytes() + struct.pack("<d", loss))
            for i in range(TOKENS):
                f.write(top.indices[i].numpy().astype("<u2").tobytes())
                f.write(np.minimum(np.rint(-top.values[i].numpy() * STEP), 65535).astype("<u2").tobytes())
            print(f"{text}: perplexity {np.exp(loss):.3f}, the kept tokens hold "
                  f"{top.values.exp().sum(-1).mean().item():.3f} of the probability")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
