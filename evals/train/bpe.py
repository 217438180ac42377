"""Byte-level BPE as in GPT-2: trains a vocabulary, encodes and decodes text.

    bpe.py train TEXT N_VOCAB VOCAB.json
    bpe.py encode (VOCAB.json | MODEL.gguf) TEXT OUT.ids        OUT.ids: int32 tokens

For a model whose GGUF file names another pre-tokeniser than gpt-2, use the engine instead:
`spillway tokenize --special -m MODEL < TEXT` prints the tokens, comma separated."""

import collections
import heapq
import json
import sys

import numpy as np
import regex

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
EOT, START, END = range(3)
SPLIT = regex.compile(r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""")


def byte_letters():
    """Maps each byte to a printable letter: the byte itself if it is printable, otherwise a letter from 256 up."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {b: chr(b) for b in keep}
    table.update((b, chr(256 + i)) for i, b in enumerate(b for b in range(256) if b not in keep))
    return table


LETTER = byte_letters()
BYTE = {c: b for b, c in LETTER.items()}


def pieces(text):
    for part in regex.split("(" + "|".join(map(regex.escape, SPECIAL)) + ")", text):
        if part in SPECIAL:
            yield part
        else:
            for m in SPLIT.finditer(part):
                yield "".join(LETTER[b] for b in m.group().encode())


def train(text, n_vocab):
    count = collections.Counter(p for p in pieces(text) if p not in SPECIAL)
    words = [[list(w), n] for w, n in count.items()]
    pairs, where = collections.Counter(), collections.defaultdict(set)
    for i, (w, n) in enumerate(words):
        for a in zip(w, w[1:]):
            pairs[a] += n
            where[a].add(i)
    heap = [(-n, p) for p, n in pairs.items()]
    heapq.heapify(heap)
    merges = []
    while len(SPECIAL) + 256 + len(merges) < n_vocab:
        n, pair = heapq.heappop(heap)
        if -n != pairs[pair]:                   # stale heap entry: the count has changed since it was pushed
            if pairs[pair] > 0:
                heapq.heappush(heap, (-pairs[pair], pair))
            continue
        merges.append(pair)
        touched = set()
        for i in list(where[pair]):
            w, n = words[i]
            new = join(w, pair)
            for a in zip(w, w[1:]):
                pairs[a] -= n
                where[a].discard(i)
                touched.add(a)
            for a in zip(new, new[1:]):
                pairs[a] += n
                where[a].add(i)
                touched.add(a)
            words[i][0] = new
        for a in touched:
            if pairs[a] > 0:
                heapq.heappush(heap, (-pairs[a], a))
        pairs[pair] = 0
    tokens = SPECIAL + [LETTER[b] for b in range(256)] + [a + b for a, b in merges]
    return {"tokens": tokens, "merges": [" ".join(m) for m in merges]}


def join(letters, pair):
    out, i = [], 0
    while i < len(letters):
        if i + 1 < len(letters) and (letters[i], letters[i + 1]) == pair:
            out.append(letters[i] + letters[i + 1])
            i += 2
        else:
            out.append(letters[i])
            i += 1
    return out


def vocabulary(path):
    """{"tokens": [...], "merges": [...]} of a JSON or GGUF file."""
    if not path.endswith(".gguf"):
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    import gguf
    fields = gguf.GGUFReader(path).fields
    if fields["tokenizer.ggml.pre"].contents() != "gpt-2":
        raise SystemExit(f"{path}: its pre-tokeniser is not gpt-2; use spillway tokenize")
    return {what: fields[f"tokenizer.ggml.{what}"].contents() for what in ("tokens", "merges")}


class Coder:
    def __init__(self, path):
        v = vocabulary(path)
        self.tokens = v["tokens"]
        self.id = {t: i for i, t in enumerate(self.tokens)}
        self.rank = {tuple(m.split(" ")): i for i, m in enumerate(v["merges"])}
        self.cache = {s: [self.id[s]] for s in SPECIAL}

    def word(self, w):
        if w not in self.cache:
            s = list(w)
            while len(s) > 1:
                best = min(zip(s, s[1:]), key=lambda p: self.rank.get(p, 1 << 30))
                if best not in self.rank:
                    break
                s = join(s, best)
            self.cache[w] = [self.id[t] for t in s]
        return self.cache[w]

    def encode(self, text):
        return [i for p in pieces(text) for i in self.word(p)]

    def decode(self, ids):
        return bytes(BYTE[c] for i in ids if i >= len(SPECIAL) for c in self.tokens[i]).decode(errors="replace")


def main(what=None, *a):
    if what == "train" and len(a) == 3:
        with open(a[0], encoding="utf-8") as f, open(a[2], "w", encoding="utf-8") as out:
            json.dump(train(f.read(), int(a[1])), out)
    elif what == "encode" and len(a) == 3:
        with open(a[1], encoding="utf-8") as f:
            ids = np.array(Coder(a[0]).encode(f.read()), dtype=np.int32)
        ids.tofile(a[2])
        print(len(ids), "tokens")
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
