#!/usr/bin/env python3
"""Compares our reading of tiktoken.model files (Kimi-K2's format) with the tiktoken package, on random strings.

    compare_tiktoken.py MANY [--count 100000] [--seed 1]

MANY is the program made from many.c.  The script makes two rank files itself: a learnt one (as compare.py), and one
with a random half of all short strings of four letters, in random order.  In the second, many pairs make the same
token: a list of merges ranks the pairs, tiktoken ranks only the token.  Special tokens have names or reserved names,
as in tokenization_kimi.py.  Prints a CSV line for each file; exit status 1 if any id differs.
Needs the packages tiktoken, tokenizers, sentencepiece, protobuf and gguf."""
import argparse, base64, itertools, json, os, random, sys, tempfile

import tiktoken
from tokenizers import Tokenizer, models, trainers

import compare

RESERVED = 256
NAMED = {0: ("[BOS]", True), 1: ("[EOS]", True), 2: ("<|im_end|>", True), 9: ("<|tool_calls_section_begin|>", False),
         22: ("[UNK]", True)}
UNTRAINED = b"\x45\0\0\0\0\0\0\0" + b'{"lm_head.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}    ....'


def learnt(seed, n_vocab=6000, n_text=20000):
    """Trains BPE with Kimi's pattern; returns the tokens as bytes, single bytes first, as in published files."""
    hf = Tokenizer(models.BPE())
    hf.pre_tokenizer = compare.PRE["kimi-k2"]
    alphabet = compare.pre.ByteLevel.alphabet()
    hf.train_from_iterator(compare.strings(seed, n_text), trainers.BpeTrainer(
        vocab_size=n_vocab, initial_alphabet=alphabet, show_progress=False))
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    byte_of = {chr(b): b for b in printable}
    byte_of.update({chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in printable)})
    vocab = hf.get_vocab()
    tokens = [bytes(byte_of[c] for c in t) for t in sorted(vocab, key=vocab.get)]
    return sorted(tokens, key=lambda t: len(t) > 1)


def crowded(seed, letters=b"ab A", most=5):
    """A random half of all short strings of these letters, in random order."""
    rng = random.Random(seed)
    more = [bytes(t) for n in range(2, most + 1) for t in itertools.product(letters, repeat=n)]
    return [bytes([b]) for b in range(256)] + rng.sample(more, len(more) // 2)


def special_tokens(n):
    return {NAMED[i][0] if i in NAMED else f"<|reserved_token_{n + i}|>": n + i for i in range(RESERVED)}


def reference(tokens):
    return tiktoken.Encoding("ours", pat_str=compare.KIMI, mergeable_ranks={t: i for i, t in enumerate(tokens)},
                             special_tokens=special_tokens(len(tokens)))


def rank_file(tokens):
    return b"".join(base64.b64encode(t) + b" %d\n" % i for i, t in enumerate(tokens))


def tokenizer_config(n):
    named = {str(n + i): {"content": text, "special": special, "lstrip": False} for i, (text, special) in NAMED.items()}
    return {"added_tokens_decoder": named, "bos_token": "[BOS]", "eos_token": "[EOS]", "unk_token": "[UNK]",
            "tokenizer_class": "TikTokenTokenizer",
            "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}}


def write_folder(folder, tokens):
    def put(name, data):
        with open(os.path.join(folder, name), "wb") as f:
            f.write(data)
    put("tiktoken.model", rank_file(tokens))
    put("tokenizer_config.json", json.dumps(tokenizer_config(len(tokens))).encode())
    put("config.json", json.dumps({"model_type": "kimi_k2", "num_hidden_layers": 1, "hidden_size": 8,
                                   "num_attention_heads": 1}).encode())
    put("model.safetensors", UNTRAINED)


def crowd(seed, count, letters="ab A"):
    rng = random.Random(seed)
    return ["".join(rng.choices(letters, k=rng.randint(1, 60))) for _ in range(count)]


def run(many, name, tokens, texts):
    encoding = reference(tokens)
    with tempfile.TemporaryDirectory() as folder:
        write_folder(folder, tokens)
        got = compare.ours(many, folder, texts)
    wrong = lost = n_token = 0
    for text, (line, *back) in zip(texts, got, strict=True):
        want, mine = encoding.encode(text, allowed_special="all"), [int(i) for i in line.split()]
        n_token += len(want)
        lost += bool(back)
        if mine != want:
            wrong += 1
            if wrong <= 3:
                print(f"{name}: {text!r}\n  tiktoken {want}\n  ours     {mine}", file=sys.stderr)
    print(name, len(tokens), len(texts), sum(len(t.encode()) for t in texts), n_token, wrong, lost, sep=",", flush=True)
    return wrong


def main():
    p = argparse.ArgumentParser()
    p.add_argument("many")
    p.add_argument("--count", type=int, default=100000)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    print("ranks,n_rank,strings,bytes,tokens,different,not_round_trip")
    tokens = learnt(a.seed + 1)
    extra = list(special_tokens(len(tokens)))[:40]
    half = a.count * 3 // 4
    wrong = run(a.many, "learnt", tokens, compare.strings(a.seed, half, extra) + compare.mixtures(a.seed + 3, a.count - half))
    wrong += run(a.many, "crowded", crowded(a.seed), crowd(a.seed, a.count))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
