"""Marks the tokens that a draft model predicts well, so that the next one learns the others (SpecInfer's boost-tuning).

    boost.py DRAFT LESSONS_FOLDER MARKS_FOLDER [--window N]

A token is marked if the draft's greedy continuation of N tokens from there equals the target's greedy
continuation, after the target's text so far.  (Whole answers of a hundred tokens are never equal.)
MARKS_FOLDER gets one .npy of booleans per file of lessons, for distil.py --marks.  Marks of an earlier
draft in that folder are kept and the new ones added: a third draft then learns the tokens that both miss."""

import os

import numpy as np
import torch

from files import arguments, load
from lessons import Lessons, known, padded


@torch.inference_mode()
def right(draft, docs):
    """For each token of each document: is the draft's most likely successor the target's?"""
    guess = draft(padded([d["id"] for d in docs])).argmax(-1).cpu().numpy()
    return [g[:len(d)] == d["top"][:, 0] for g, d in zip(guess, docs)]


def lasting(ok, window):
    """For each token: are this guess and the window-1 guesses after it right?"""
    out = ok.copy()
    for k in range(1, min(window, len(ok))):
        out[:-k] &= ok[k:]
    return out


def main():
    p = arguments(__doc__)
    p.add_argument("draft")
    p.add_argument("lessons")
    p.add_argument("marks")
    p.add_argument("--window", type=int, default=1)
    a = p.parse_args()
    draft, lessons, marks, learnt = load(a.draft), Lessons(a.lessons), {}, {}
    for group in lessons.groups(8192):
        docs = lessons.read(group)
        for (r, start, end, name), d, ok in zip(lessons.docs[group], docs, right(draft, docs)):
            for of, what in (marks, lasting(ok, a.window)), (learnt, known(d)):
                of.setdefault(name, np.zeros(len(r), dtype=np.bool_))[start:end] = what
    os.makedirs(a.marks, exist_ok=True)
    for name, m in marks.items():
        if os.path.exists(f"{a.marks}/{name}"):
            m |= np.load(f"{a.marks}/{name}")
        np.save(f"{a.marks}/{name}", m)
    n_marked, n_learnt = sum((marks[n] & m).sum() for n, m in learnt.items()), sum(m.sum() for m in learnt.values())
    print(f"{n_marked / n_learnt:.3f} of the learnable tokens are marked")


if __name__ == "__main__":
    main()
