"""Generates a target's answers to prompts: drafters learn best from text that the target wrote.

    sample.py TARGET PROMPTS.jsonl OUT_FOLDER [--count N] [--length N] [--shard I/N] [--vocab V]

Every prompt is answered twice, greedily and at temperature 1.  Rows of a batch have prompts of similar length and
are at the same position; until the end of its prompt, a row's next token is the prompt's.  OUT_FOLDER gets one .ids
file per batch, documents ended by <|endoftext|>.  A stopped run continues with the first missing file.  Batches are
in random order, so that the files of a stopped run are a fair sample."""

import json
import os
import time

import numpy as np
import torch

from bpe import Coder, END, EOT
from files import DEVICE, arguments, load
from model import Cache


@torch.inference_mode()
def write(model, prompts, length, noise):
    """Returns prompt and continuation of each row, up to <|im_end|> or `length` tokens in total.

    noise(at, shape): is added to the logits of the token at position `at`; 0 for greedy rows, Gumbel noise
    for a sample at temperature 1."""
    device = model.head.weight.device
    rows = torch.full((len(prompts), length), -1, dtype=torch.long)
    for row, p in zip(rows, prompts):
        row[:len(p)] = torch.from_numpy(p[:length].astype(np.int64))
    rows = rows.to(device)
    given = (rows >= 0)
    at, done = int(given.sum(1).min()), torch.zeros(len(prompts), dtype=torch.bool, device=device)
    cache = Cache(model.s, len(prompts), length, model.embed.weight)
    logits = model.head(model.features(rows[:, :at], cache)[:, -1]).float()
    while True:
        chosen = (logits + noise(at, logits.shape)).argmax(-1)
        rows[:, at] = torch.where(given[:, at], rows[:, at], torch.where(done, EOT, chosen))
        done |= ~given[:, at] & ((rows[:, at] == END) | (rows[:, at] == EOT))
        at += 1
        if at == length or bool(done.all()):
            return [row[row != EOT].astype(np.int32) for row in rows[:, :at].cpu().numpy()]
        logits = model.head(model.features(rows[:, at - 1:at], cache)[:, -1]).float()


def drawn(seed, every=1):
    """Gumbel noise for the last row of each group of rows, 0 for the others."""
    g = torch.Generator(DEVICE).manual_seed(seed)

    def noise(_, shape):
        hot = (torch.arange(shape[0], device=DEVICE) % every == every - 1)[:, None]
        return -torch.empty(shape, device=DEVICE).exponential_(generator=g).log() * hot
    return noise


def main():
    p = arguments(__doc__)
    p.add_argument("target")
    p.add_argument("prompts")
    p.add_argument("out")
    p.add_argument("--count", type=int, default=5000, help="prompts, chosen at random")
    p.add_argument("--length", type=int, default=256, help="number of tokens with the prompt")
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--shard", default="0/1", help="this process's part, for several at once")
    p.add_argument("--vocab", help="needed if TARGET is not a GGUF file")
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    model, coder, rng = load(a.target), Coder(a.vocab or a.target), np.random.default_rng(5)
    with open(a.prompts, encoding="utf-8") as f:
        asked = [json.loads(line)["prompt"] for line in f]
    prompts = [coder.encode(asked[i]) for i in rng.permutation(len(asked))[:a.count]]
    prompts = sorted((np.array(p, np.int32) for p in prompts if len(p) < .6 * a.length), key=len)
    prompts = [p for p in prompts for _ in range(2)]
    batches = [prompts[i:i + a.batch] for i in range(0, len(prompts), a.batch)]
    order = rng.permutation(len(batches))
    mine, of = map(int, a.shard.split("/"))
    os.makedirs(a.out, exist_ok=True)
    start, n = time.time(), 0
    for at, i in list(enumerate(order))[mine::of]:
        path = f"{a.out}/{at:04}.ids"
        if os.path.exists(path):
            continue
        docs = write(model, batches[i], a.length, drawn(int(i), every=2))
        np.concatenate([np.append(d, EOT) for d in docs]).astype(np.int32).tofile(path + ".new")
        os.replace(path + ".new", path)
        n += sum(map(len, docs))
        print(f"{path} of {len(order)}: {n / (time.time() - start):.0f} tokens per second", flush=True)


if __name__ == "__main__":
    main()
