"""Trains a language model on text: a target, or a first draft model.

    train.py TOKENS.ids --shape NAME --out NAME [--held HELD.ids] [--start MODEL.pt] [--threads N]

A row is 256 tokens from a random place of the text.  A mixture of experts is trained with the usual balance loss:
0.01 x number of experts x sum over experts of (share of rows) x (mean probability).  Prints the perplexity of the
held-out documents at the end, and with --minutes at every stop."""

import math

import numpy as np
import torch
import torch.nn.functional as F

import loop
from files import DEVICE, arguments, documents, load, read_shape
from perplexity import losses
from model import Model

ROW = 256


def main():
    p = arguments(__doc__)
    p.add_argument("tokens")
    p.add_argument("--shape", default="target")
    p.add_argument("--start", help="weights to begin with")
    p.add_argument("--held")
    loop.arguments(p, steps=3000, peak=2e-3)
    a = p.parse_args()
    torch.manual_seed(1)
    model = load(a.start) if a.start else Model(read_shape(a.shape)).to(DEVICE)
    data, n_row = np.fromfile(a.tokens, dtype=np.int32), a.batch // ROW
    places = len(data) // ROW - 1

    def loss_of(step):
        epoch, i = divmod(step * n_row, places)
        rng = np.random.default_rng((1, epoch))
        shift, order = rng.integers(ROW), rng.permutation(places)
        at = [order[(i + k) % places] * ROW + shift for k in range(n_row)]
        x = torch.from_numpy(np.stack([data[k:k + ROW + 1] for k in at]).astype(np.int64)).to(DEVICE)
        words = F.cross_entropy(model(x[:, :-1]).float().flatten(0, 1), x[:, 1:].flatten())
        balance = model.balance()
        return words + .01 * balance, {"words": words.detach(), "balance": balance}
    loop.fit(model, loss_of, a)
    if a.held:
        docs = sorted(documents(a.held, ROW), key=len)
        loss = np.concatenate([*losses(model.eval(), docs)]).mean()
        print(f"held out: loss {loss:.4f}, perplexity {math.exp(loss):.2f}")


if __name__ == "__main__":
    main()
