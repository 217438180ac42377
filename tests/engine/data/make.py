#!/usr/bin/env python3
"""Makes the expected ids in this folder with HF tokenizers and sentencepiece (see README.md).

    make.py

texts.bin holds 200 random texts, each a 32-bit little-endian length and its bytes.  <pre>.ids has
one line of ids for each, with the vocabulary of gpt-2.gguf under that pre-tokeniser; spm-*.ids has
them for the two small SentencePiece vocabularies, which are trained here too."""
import os, random, struct, sys
here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "../../../evals/tokenizer"))
import compare


def put(name, ids):
    with open(os.path.join(here, name + ".ids"), "w") as f:
        f.writelines(" ".join(map(str, line)) + "\n" for line in ids)


def main():
    meta = compare.read(os.path.join(here, "gpt-2.gguf"))
    texts = compare.strings(7, 200, ["<|endoftext|>"])
    with open(os.path.join(here, "texts.bin"), "wb") as f:
        for t in texts:
            f.write(struct.pack("<I", len(t.encode())) + t.encode())
    for name in compare.PRE:
        hf, _ = compare.hf_from(meta | {"pre": name})
        put(name, (hf.encode(t, add_special_tokens=False).ids for t in texts))
    rng = random.Random(7)
    words = [" ".join(rng.choices(compare.TEXT, k=12)) for _ in range(2000)]
    for fallback in (True, False):
        name = "spm-bytes" if fallback else "spm-unknown"
        path = os.path.join(here, name + ".gguf")
        compare.train_spm(path, "/tmp", 7, fallback, n_vocab=600 if fallback else 350, lines=words)
        spm = compare.spm_from(compare.read(path))
        put(name, (spm.encode(t) for t in texts))


main()
