"""Trains Medusa heads for a target, from lessons (records of the target's predictions and features, lessons.py).

    medusa.py TARGET LESSONS_FOLDER --out NAME [--heads N] [--layers N]

Writes NAME.medusa, a folder as the authors of Medusa publish theirs, for --draft medusa:NAME.medusa.  The target is
frozen.  Each output matrix begins as the target's own, each block as zero.  The loss is the authors': the cross-entropy of head i, 0.8^i
of it, here with the target's likeliest successors in place of the text's token."""

import json
import os

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

import loop
from distil import Batch, in_turn, soft_loss
from eagle import features
from files import DEVICE, arguments, load
from lessons import Lessons


class ResBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.linear = nn.Linear(d, d)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x):
        return x + F.silu(self.linear(x))


class Heads(nn.ModuleList):
    def __init__(self, target, n_head, n_layer):
        d, out = target.s.d_model, target.head.weight.detach().float()
        super().__init__([nn.Sequential(*[ResBlock(d) for _ in range(n_layer)], nn.Linear(d, target.s.n_vocab, bias=False))
                          for _ in range(n_head)])
        for head in self:
            head[-1].weight.data.copy_(out)


def main():
    p = arguments(__doc__)
    p.add_argument("target")
    p.add_argument("lessons")
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--layers", type=int, default=1)
    loop.arguments(p, steps=600, peak=1e-3)
    a = p.parse_args()
    torch.manual_seed(1)
    target = load(a.target)
    heads = Heads(target, a.heads, a.layers).to(DEVICE)
    heads.s = target.s
    lessons = Lessons(a.lessons)
    pick = in_turn(lessons.groups(a.batch), 1)
    print(f"{len(lessons.docs)} documents, {lessons.n_tok} tokens", flush=True)

    def loss_of(step):
        docs = lessons.read(pick(step))
        b = Batch(docs, shift=a.heads)
        truth = features(docs, b.ids.shape[1]).flatten(0, 1)
        loss, numbers = 0., {}
        for i, head in enumerate(heads):                # the feature of token j, the target's opinion of token j + 2 + i
            logits = head(truth[b.at - 1 - i])
            words = soft_loss(logits, b.top, b.p).mean()
            loss = loss + .8 ** i * words
            numbers |= {f"words{i}": words.detach(), f"right{i}": (logits.argmax(-1) == b.top[:, 0]).float().mean()}
        return loss, numbers
    loop.fit(heads, loss_of, a)
    folder = a.out + ".medusa"
    os.makedirs(folder, exist_ok=True)
    save_file({name: x.half().contiguous() for name, x in heads.state_dict().items()},
              f"{folder}/medusa_lm_head.safetensors")
    with open(f"{folder}/config.json", "w", encoding="utf-8") as f:
        json.dump({"base_model_name_or_path": a.target, "medusa_num_heads": a.heads, "medusa_num_layers": a.layers}, f, indent=1)


if __name__ == "__main__":
    main()
