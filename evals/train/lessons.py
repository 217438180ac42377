"""Records a target's predictions: for each token the 64 most likely successors and the feature (final hidden state).

    lessons.py TARGET OUT_FOLDER TEXTS... [--length N] [--docs N]

Drafters are trained on these files ("lessons"), so the target runs once for any number of drafters.  TEXTS are
files of sample.py or bpe.py, or folders of these or of teach's files.  OUT_FOLDER gets one .npy file for each 1,000
documents; a stopped run continues with the first missing file.  A token has one record (dtype below): 900 bytes for
d_model 256.  Successors are recorded for the tokens that drafters learn: the assistant's answers in a chat, the
tokens that teach recorded, or all tokens of other texts.  In other records they are zero."""

import os
import time

import numpy as np
import torch

from files import DEVICE, answer_at, arguments, documents, load

TOP = 64
SHARD = 1000


def record(d_model):
    return np.dtype([("id", np.int32), ("first", np.bool_),         # token; is it the first of a document?
                     ("top", np.int32, TOP), ("logp", np.float16, TOP),
                     ("feature", np.float16, d_model)])


def batches(lengths, n_tok):
    """Splits documents into consecutive slices of at most n_tok tokens when padded to their longest."""
    at = 0
    while at < len(lengths):
        end, longest = at + 1, lengths[at]
        while end < len(lengths) and (end + 1 - at) * max(longest, lengths[end]) <= n_tok:
            longest = max(longest, lengths[end])
            end += 1
        yield slice(at, end)
        at = end


def padded(docs):
    """[n_doc][longest] int64 on the device; padding is token 0."""
    out = np.zeros((len(docs), max(map(len, docs))), dtype=np.int64)
    for row, d in zip(out, docs):
        row[:len(d)] = d
    return torch.from_numpy(out).to(DEVICE)


def known(doc):
    """Which records of a document have successors: those whose second successor's logp is not 0."""
    return doc["logp"][:, 1] < 0


def answers(model, docs):
    """Yields the records of each document; docs: (tokens, index of the first token that drafters learn)."""
    f = model.features(padded([d for d, _ in docs]))
    logits = model.head(f).float()
    best, top = logits.topk(TOP, -1)
    logp = best - logits.logsumexp(-1, keepdim=True)
    for i, (d, at) in enumerate(docs):
        out = np.zeros(len(d), dtype=record(model.s.d_model))
        out["id"], out["first"][0] = d, True
        out["feature"] = f[i, :len(d)].float().cpu().numpy()
        for name, t in (("top", top), ("logp", logp)):
            out[name][at:] = t[i, at:len(d)].float().cpu().numpy()
        yield out


def texts(path, length):
    """Yields (tokens, index of the first token that drafters learn) of each document of TEXTS."""
    taught = os.path.isdir(path) and [n for n in os.listdir(path) if n.endswith(".npy")]
    if taught:
        docs = ((d["id"], int(known(d).argmax())) for d in Lessons(path).read(slice(None)))
    else:
        docs = ((d, max(answer_at(d) - 1, 0)) for d in documents(path))
    return [(np.array(d[:length]), at) for d, at in docs if at < length - 1]


def main():
    p = arguments(__doc__)
    p.add_argument("target")
    p.add_argument("out")
    p.add_argument("texts", nargs="+")
    p.add_argument("--length", type=int, default=256, help="largest number of tokens of a document")
    p.add_argument("--docs", type=int, help="number of documents, chosen at random")
    p.add_argument("--batch", type=int, default=8192, help="tokens in one pass")
    p.add_argument("--shard", default="0/1", help="this process's part, for several at once")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--bf16", action="store_true", help="products in bfloat16 on a CPU too: faster if it has AVX512-BF16")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    model = load(a.target)
    docs = [d for path in a.texts for d in texts(path, a.length)]
    docs = [docs[i] for i in np.random.default_rng(3).permutation(len(docs))[:a.docs]]
    os.makedirs(a.out, exist_ok=True)
    mine, of = map(int, a.shard.split("/"))
    start, n = time.time(), 0
    for at in range(0, len(docs), SHARD)[mine::of]:
        path = f"{a.out}/{at // SHARD:04}.npy"
        if os.path.exists(path):
            continue
        some = sorted(docs[at:at + SHARD], key=lambda d: len(d[0]))
        with torch.inference_mode(), torch.autocast(DEVICE, torch.bfloat16, enabled=a.bf16):
            parts = [r for b in batches([len(d) for d, _ in some], a.batch) for r in answers(model, some[b])]
        with open(path + ".new", "wb") as f:
            np.save(f, np.concatenate(parts))
        os.replace(path + ".new", path)
        n += sum(len(d) for d, _ in some)
        print(f"{path}: {n} tokens, {n / (time.time() - start):.0f} per second", flush=True)


class Lessons:
    """The records of a folder, as documents in order of length."""

    def __init__(self, folder):
        self.docs = []
        for name in sorted(os.listdir(folder)):
            if name.endswith(".npy"):
                r = np.load(f"{folder}/{name}", mmap_mode="r")
                ends = [*np.flatnonzero(r["first"])[1:], len(r)]
                self.docs += [(r, a, b, name) for a, b in zip([0, *ends], ends)]
        self.docs.sort(key=lambda d: d[2] - d[1])
        self.n_tok = sum(b - a for _, a, b, _ in self.docs)

    def groups(self, n_tok):
        return list(batches([b - a for _, a, b, _ in self.docs], n_tok))

    def read(self, where):
        return [r[a:b] for r, a, b, _ in self.docs[where]]

    def read_beside(self, folder, where):
        """Reads files of the same names from another folder, with values for the same tokens."""
        return [np.load(f"{folder}/{name}", mmap_mode="r")[a:b] for _, a, b, name in self.docs[where]]


if __name__ == "__main__":
    main()
