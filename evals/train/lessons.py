"""Writes down what a target answers: for every token its likeliest 64 successors and the feature behind them.

    lessons.py TARGET OUT_FOLDER TEXTS... [--length N] [--docs N]

Drafters are trained on these files, so the target runs once however many drafters follow.  TEXTS are files
of sample.py or bpe.py, or folders of them or of teach's; OUT_FOLDER gets one .npy per 1,000 documents, and a
run that was stopped goes on with the first that is missing.  One record per token (dtype below): with d_model
256 it is 900 bytes.  Successors are written down where there is something to learn: in the assistant's words,
or in what teach wrote down, or everywhere; elsewhere they are zero."""

import os
import time

import numpy as np
import torch

from files import DEVICE, answer_at, arguments, documents, load

TOP = 64
SHARD = 1000


def record(d_model):
    return np.dtype([("id", np.int32), ("first", np.bool_),         # token; whether a document begins here
                     ("top", np.int32, TOP), ("logp", np.float16, TOP),
                     ("feature", np.float16, d_model)])


def batches(lengths, n_tok):
    """Slices of consecutive documents that take at most n_tok tokens when padded to the longest."""
    at = 0
    while at < len(lengths):
        end, longest = at + 1, lengths[at]
        while end < len(lengths) and (end + 1 - at) * max(longest, lengths[end]) <= n_tok:
            longest = max(longest, lengths[end])
            end += 1
        yield slice(at, end)
        at = end


def padded(docs):
    """[n_doc][longest] int64 on the device; what is past a document's end is token 0."""
    out = np.zeros((len(docs), max(map(len, docs))), dtype=np.int64)
    for row, d in zip(out, docs):
        row[:len(d)] = d
    return torch.from_numpy(out).to(DEVICE)


def known(doc):
    """Where in a document's records successors are written down: the second likeliest has no logp of 0."""
    return doc["logp"][:, 1] < 0


@torch.inference_mode()
def answers(model, docs):
    """The records of each document; docs: (tokens, the first place that something is learnt at)."""
    f = model.features(padded([d for d, _ in docs]))
    logp, top = torch.log_softmax(model.head(f).float(), -1).topk(TOP, -1)
    for i, (d, at) in enumerate(docs):
        out = np.zeros(len(d), dtype=record(model.s.d_model))
        out["id"], out["first"][0] = d, True
        out["feature"] = f[i, :len(d)].float().cpu().numpy()
        for name, t in (("top", top), ("logp", logp)):
            out[name][at:] = t[i, at:len(d)].float().cpu().numpy()
        yield out


def texts(path, length):
    """(tokens, the first place that something is learnt at) of each document of TEXTS."""
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
    p.add_argument("--length", type=int, default=256, help="documents are cut here")
    p.add_argument("--docs", type=int, help="only this many documents, chosen at random")
    p.add_argument("--batch", type=int, default=8192, help="tokens in one pass")
    p.add_argument("--shard", default="0/1", help="this process's part, for several at once")
    a = p.parse_args()
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
        parts = [r for b in batches([len(d) for d, _ in some], a.batch) for r in answers(model, some[b])]
        with open(path + ".new", "wb") as f:
            np.save(f, np.concatenate(parts))
        os.replace(path + ".new", path)
        n += sum(len(d) for d, _ in some)
        print(f"{path}: {n} tokens, {n / (time.time() - start):.0f} per second", flush=True)


class Lessons:
    """The records of a folder, as documents sorted by length."""

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
        """What files of the same names in another folder say about the same tokens."""
        return [np.load(f"{folder}/{name}", mmap_mode="r")[a:b] for _, a, b, name in self.docs[where]]


if __name__ == "__main__":
    main()
