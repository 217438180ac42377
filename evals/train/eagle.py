"""Trains an EAGLE head for a target, from lessons (records of the target's predictions and features, lessons.py).

    eagle.py TARGET LESSONS_FOLDER --out NAME [--shape eagle] [--unroll N]

The loss is that of the EAGLE paper: smooth L1 between predicted and true feature, plus --words times the
cross-entropy of the target's tokens under its frozen output head.  Noise is added to the input features, so that
the head tolerates its own errors.  With --unroll N, a step has N passes, each reading the predictions of the pass
before it as drafting does ("training-time test" in later papers); pass j has weight 0.8^j.  N = 1 is the paper's
training."""

import numpy as np
import torch
import torch.nn.functional as F

import loop
from distil import Batch, in_turn, logits_of, soft_loss
from files import DEVICE, arguments, load, read_shape
from lessons import Lessons
from model import Eagle


def features(docs, n):
    out = np.zeros((len(docs), n, docs[0]["feature"].shape[1]), dtype=np.float32)
    for row, d in zip(out, docs):
        row[:len(d)] = d["feature"]
    return torch.from_numpy(out).to(DEVICE)


def main():
    p = arguments(__doc__)
    p.add_argument("target")
    p.add_argument("lessons")
    p.add_argument("--shape", default="eagle")
    p.add_argument("--start", help="weights to begin with")
    p.add_argument("--unroll", type=int, default=3)
    p.add_argument("--words", type=float, default=.1, help="weight of the cross-entropy")
    p.add_argument("--negatives", type=int, help="compare with so many random words of the vocabulary instead of all")
    p.add_argument("--noise", type=float, default=.1, help="uniform noise, in standard deviations of the features")
    loop.arguments(p, steps=3000, peak=2e-3)
    a = p.parse_args()
    torch.manual_seed(1)
    target = load(a.target)
    same = {"d_model": target.s.d_model, "n_vocab": target.s.n_vocab}
    head = load(a.start, target) if a.start else Eagle(read_shape(a.shape, **same), target).to(DEVICE)
    lessons = Lessons(a.lessons)
    pick = in_turn(lessons.groups(a.batch), 1)
    print(f"{len(lessons.docs)} documents, {lessons.n_tok} tokens", flush=True)

    def loss_of(step):
        docs = lessons.read(pick(step))
        b = Batch(docs, shift=a.unroll)                 # row 0 has no guess; in pass j rows 0 to j have none
        t = b.ids.shape[1]
        truth = features(docs, t)
        g = torch.Generator(DEVICE).manual_seed(step)
        noise = torch.rand(truth.shape, generator=g, device=DEVICE) * 2 - 1
        heard = truth + noise * a.noise * truth.std()
        loss, numbers = 0., {}
        for j, guess in enumerate(head.unroll(heard[:, :-1], b.ids[:, 1:], a.unroll)):
            guess = F.pad(guess, (0, 0, 1, 0)).flatten(0, 1)[b.at]      # row i is now the guess of feature i
            logits, top = logits_of(target.head, guess, b.top, a.negatives, step)
            near = F.smooth_l1_loss(guess.float(), truth.flatten(0, 1)[b.at])
            words = soft_loss(logits, top, b.p).mean()
            loss = loss + .8 ** j * (near + a.words * words)
            numbers |= {f"near{j}": near.detach(), f"words{j}": words.detach(),
                        f"right{j}": (logits.argmax(-1) == top[:, 0]).float().mean()}
        return loss, numbers
    loop.fit(head, loss_of, a)


if __name__ == "__main__":
    main()
