"""Measures how a target uses its experts: how often each is chosen, and how many distinct ones t tokens choose.

    usage.py TARGET OUT_PREFIX NAME=TEXT.ids...

PREFIX-share.csv: the share of choices for each text, layer and expert.  PREFIX-distinct.csv: for each text and t, the
mean number of distinct experts per layer over t neighbouring tokens of one document (as in a verification) and over
t tokens of t documents (as in a batch), beside N(t) = E (1 - (1 - K/E)^t), its value for independent, even choices."""

import csv
import sys

import numpy as np
import torch

from files import documents, load
from lessons import batches, padded

SPANS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)
DRAWS = 2000


@torch.inference_mode()
def choices(model, docs):
    """For each document, the chosen experts [n_layer][n_tok][n_used]."""
    out, docs = [], sorted(docs, key=len)
    for b in batches([*map(len, docs)], 8192):
        ids = padded(docs[b])
        model.features(ids)
        e = torch.stack([x.ffn.chosen.view(*ids.shape, -1) for x in model.layers])
        out += [e[:, i, :len(d)].cpu().numpy() for i, d in enumerate(docs[b])]
    return out


def distinct(sets):
    """Mean number of distinct experts; sets: [draw][n_layer][t][n_used]."""
    s = np.sort(sets.reshape(*sets.shape[:2], -1), -1)
    return 1 + (np.diff(s, axis=-1) != 0).sum(-1).mean()


def main(target, prefix, *texts):
    model, rng = load(target), np.random.default_rng(4)
    n_expert, n_used = model.s.n_expert, model.s.n_used
    with open(prefix + "-share.csv", "w", newline="") as f, \
            open(prefix + "-distinct.csv", "w", newline="") as g:
        share, spread = csv.writer(f), csv.writer(g)
        share.writerow("text layer expert share".split())
        spread.writerow("text t neighbours batch independent".split())
        for name, path in (t.split("=", 1) for t in texts):
            docs = choices(model, documents(path, 320))
            everything = np.concatenate(docs, 1)
            for layer, e in enumerate(everything):
                for expert, n in enumerate(np.bincount(e.reshape(-1), minlength=n_expert)):
                    share.writerow([name, layer, expert, f"{n / e.size:.5f}"])
            for t in SPANS:
                long = [d for d in docs if d.shape[1] >= t]
                near, far = [], []
                for _ in range(DRAWS):
                    d = long[rng.integers(len(long))]
                    at = rng.integers(d.shape[1] - t + 1)
                    near.append(d[:, at:at + t])
                    far.append(everything[:, rng.integers(everything.shape[1], size=t)])
                spread.writerow([name, t, f"{distinct(np.array(near)):.3f}", f"{distinct(np.array(far)):.3f}",
                                 f"{n_expert * (1 - (1 - n_used / n_expert) ** t):.3f}"])


if __name__ == "__main__":
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
