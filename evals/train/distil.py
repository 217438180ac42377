"""Trains a draft model to predict its target's tokens, from lessons (records of the target's predictions, lessons.py).

    distil.py LESSONS_FOLDER --out NAME (--shape draft | --start DRAFT [--fixed]) [--marks FOLDER]

The loss is the cross-entropy of the target's 64 most likely successors under the draft, with all other tokens
as one class.  It counts tokens that have records: the assistant's answers.  With --marks (boost.py), tokens that
an earlier draft predicts right get a small weight, so that the second draft learns the tokens that the first one
misses."""

import math

import numpy as np
import torch
import torch.nn.functional as F

import loop
from files import DEVICE, arguments, load, read_shape
from lessons import Lessons, known, padded
from model import Model


class Batch:
    """The documents of one step: tokens, and the flat indices (row-major) of the tokens that are learnt."""

    def __init__(self, docs, shift=0):
        self.ids = padded([d["id"] for d in docs])
        t = self.ids.shape[1]
        spans = [slice(min(max(int(known(d).argmax()), shift), len(d) - 1), len(d)) for d in docs]
        self.spans = spans
        self.at = torch.from_numpy(np.concatenate([np.arange(s.start, s.stop) + i * t
                                                   for i, s in enumerate(spans)])).to(DEVICE)
        self.top = self.take(docs, "top", np.int64)
        self.p = self.take(docs, "logp", np.float32).exp()

    def take(self, docs, name, dtype):
        parts = [np.asarray(d[name][s], dtype=dtype) for d, s in zip(docs, self.spans)]
        return torch.from_numpy(np.concatenate(parts)).to(DEVICE)


def soft_loss(logits, top, p):
    """Cross-entropy of each row over the target's most likely successors and one class for all other tokens."""
    log_q = torch.log_softmax(logits.float(), -1).gather(-1, top)
    rest, rest_q = (1 - p.sum(-1)).clamp(min=0), (1 - log_q.exp().sum(-1)).clamp(min=1e-6)
    return -(p * log_q).sum(-1) - rest * rest_q.log()


def logits_of(head, x, top, n_other, step):
    """Logits of the batch's successors and of n_other random words, which stand for all others; and top as indices of them.
    Without n_other, of all words.

    With a large vocabulary the head is most of the work: 49,152 words of a batch that needs 3,000."""
    if not n_other:
        return head(x), top
    n_vocab, (words, at) = head.weight.shape[0], torch.unique(top, return_inverse=True)
    g = torch.Generator(DEVICE).manual_seed(step)
    other = torch.randint(0, n_vocab, (n_other,), generator=g, device=DEVICE).unique()
    other = other[~torch.isin(other, words)]
    logits = F.linear(x, head.weight[torch.cat((words, other))]).float()
    logits[:, len(words):] += math.log(max(n_vocab - len(words), 1) / max(len(other), 1))
    return logits, at


def in_turn(groups, seed):
    """Returns a function from step to group. Each epoch has every group once, in an order given by seed and epoch."""
    def at(step):
        epoch, i = divmod(step, len(groups))
        return groups[np.random.default_rng((seed, epoch)).permutation(len(groups))[i]]
    return at


def main():
    p = arguments(__doc__)
    p.add_argument("lessons")
    p.add_argument("--shape", default="draft")
    p.add_argument("--start", help="weights to begin with: a .pt or .gguf file")
    p.add_argument("--fixed", action="store_true", help="embedding and output head stay as they are")
    p.add_argument("--negatives", type=int, help="compare with so many random words of the vocabulary instead of all")
    p.add_argument("--marks", help="folder of boost.py")
    p.add_argument("--marked", type=float, default=.2, help="weight of a marked token")
    loop.arguments(p, steps=3000, peak=2e-3)
    a = p.parse_args()
    torch.manual_seed(1)
    draft = load(a.start) if a.start else Model(read_shape(a.shape)).to(DEVICE)
    lessons = Lessons(a.lessons)
    pick = in_turn(lessons.groups(a.batch), 1)
    print(f"{len(lessons.docs)} documents, {lessons.n_tok} tokens", flush=True)

    def loss_of(step):
        where = pick(step)
        b = Batch(lessons.read(where))
        if max(int(b.ids.max()), int(b.top.max())) >= draft.s.n_vocab:
            raise SystemExit(f"the lessons' vocabulary has more than {draft.s.n_vocab} tokens: use a --shape with the "
                             "target's n_vocab")
        x, top = draft.features(b.ids).flatten(0, 1)[b.at], b.top
        logits, top = logits_of(draft.head, x, top, a.negatives, step)
        loss, right = soft_loss(logits, top, b.p), (logits.argmax(-1) == top[:, 0]).float()
        weight = torch.ones_like(loss)
        if a.marks:
            marks = [m[s] for m, s in zip(lessons.read_beside(a.marks, where), b.spans)]
            weight[torch.from_numpy(np.concatenate(marks)).to(DEVICE)] = a.marked
        numbers = {"right": right.mean()}
        if a.marks:
            numbers["right_unmarked"] = (right * (weight == 1)).sum() / (weight == 1).sum().clamp(min=1)
        return (loss * weight).sum() / weight.sum(), numbers
    loop.fit(draft, loss_of, a, [draft.embed, draft.head] if a.fixed else [])


if __name__ == "__main__":
    main()
