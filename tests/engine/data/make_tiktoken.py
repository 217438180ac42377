#!/usr/bin/env python3
"""Makes kimi.tiktoken and kimi-tiktoken.ids in this folder with the tiktoken package (see README.md).

    make_tiktoken.py

Ranks: 256 bytes, what BPE learns with Kimi's pattern, and crowded tokens, which several pairs of tokens make; ids are
those of texts.bin and of the texts below, which are written to kimi-tiktoken.texts, one a line."""
import os, sys
here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "../../../evals/tokenizer"))
import compare_tiktoken as ranks
import texts

TOKENS = ranks.learnt(21, 500, 3000)
TOKENS += [t for t in ranks.crowded(22, b"xy", 6)[256:] if t not in TOKENS]
MORE = ["[BOS]a[EOS] <|im_end|>[BOS", f"<|tool_calls_section_begin|>x<|reserved_token_{len(TOKENS) + 5}|>",
        *ranks.crowd(5, 40, "xy")]

encoding = ranks.reference(TOKENS)
with open(os.path.join(here, "kimi.tiktoken"), "wb") as f:
    f.write(ranks.rank_file(TOKENS))
with open(os.path.join(here, "kimi-tiktoken.texts"), "w") as f:
    f.writelines(t + "\n" for t in MORE)
texts.put_ids("kimi-tiktoken", (encoding.encode(t, allowed_special="all") for t in [*texts.read(), *MORE]))
