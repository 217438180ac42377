"""Measures tokens per target pass of drafters: a reference for the engine, and the figures of the models' report.

    measure.py TARGET OUT.csv [NAME=DRAFTER...] --prompts NAME=FILE... --texts FOLDER [--count N] [--new N]

TARGET and DRAFTER are GGUF files or checkpoints; NAME=A+B merges the chains of two drafters into one tree
(a round gains the longer match).  Prompt files: gsm8k's (question), HumanEval's (prompt), MT-Bench's
(turns[0]), each given to the target as one user message in ChatML; or corpus.py's files, which are whole prompts.
The questions chosen from each file are written to FOLDER/NAME.jsonl, for ../acceptance.c.

The target writes --new tokens greedily, then again at temperature 1 with coupled noise: the choice at a
position is argmax(logit + Gumbel noise of that prompt and position), and a drafter uses the same noise.
A drafted token is accepted if it is the target's choice, so the text does not depend on the drafter.  One pass over
the text then shows for every position and depth whether a drafted token is right: as long as a draft is right, its
prefix is the target's text.  An EAGLE head runs as in drafting, each guess from the one before.  The prefill gives
the first token; each round after it gives up to gamma accepted tokens and one token of the target.  Intervals are
95 %, by bootstrap over prompts."""

import csv
import gzip
import json
import os

import numpy as np
import torch

from bpe import Coder, EOT
from corpus import ask
from files import DEVICE, arguments, documents, load
from model import Eagle
from sample import write

GAMMAS = (1, 2, 3, 4, 6, 8)
COLUMNS = "prompts temperature drafter gamma n_prompt n_token first_right tokens_per_pass low high".split()


def questions(path, count):
    """The first user message of each line, `count` of them chosen at random."""
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    out = [r.get("question") or r.get("prompt") or r["turns"][0] for r in rows]
    return [out[i] for i in sorted(np.random.default_rng(11).permutation(len(out))[:count])]


def whole(question):
    return question if question.startswith("<|im_start|>") else ask(question)


def noise(number, n, n_vocab):
    """Gumbel noise [n][n_vocab] of one prompt: row i depends on the prompt's number and on i only."""
    g = torch.Generator(DEVICE).manual_seed(1000 + number)
    rows = [torch.empty(n_vocab, device=DEVICE).exponential_(generator=g) for _ in range(n)]
    return -torch.stack(rows).log()


def texts(target, prompts, n_new, hot, batch=32):
    """Yields each prompt with the target's answer."""
    order, out = np.argsort([len(p) for p in prompts], kind="stable"), [None] * len(prompts)
    for at in range(0, len(order), batch):
        some = order[at:at + batch]
        n_max = len(prompts[some[-1]]) + n_new
        tables = [noise(int(i), n_max, target.s.n_vocab) for i in some] if hot else []
        draw = (lambda p, _: torch.stack([t[p] for t in tables])) if hot else (lambda *_: 0)
        for i, row in zip(some, write(target, [prompts[i] for i in some], n_max, draw)):
            out[i] = row[:len(prompts[i]) + n_new]
    return out


def kept(path, prompts, make):
    """Documents of a .ids file, one for each prompt; a missing file is generated and written first."""
    if not os.path.exists(path):
        np.concatenate([np.append(d, EOT) for d in make()]).astype(np.int32).tofile(path)
    docs = documents(path)
    if [*map(len, prompts)] != [len(p) for p, d in zip(prompts, docs) if np.array_equal(p, d[:len(p)])]:
        raise SystemExit(f"{path} has answers to other prompts: remove it")
    return docs


@torch.inference_mode()
def matches(drafter, target, start, row, added):
    """[depth][position - start]: is the drafted token right there? Depth 0 is the first token of a round.

    added: the noise of every position [n][n_vocab], or None."""
    ids = torch.from_numpy(row.astype(np.int64)).to(DEVICE)
    if isinstance(drafter, Eagle):
        guesses = drafter.unroll(target.features(ids[None, :-1]), ids[None, 1:], max(GAMMAS))
        logits = [target.head(g[0, :-1]) for g in guesses]      # row i is about token i + 2
        first = 2
    else:
        logits, first = [drafter(ids[None])[0, :-1]], 1         # row i is about token i + 1
    more = 0 if added is None else added[first:]
    right = [((z.float() + more).argmax(-1) == ids[first:])[start - first:].cpu().numpy() for z in logits]
    return right * (max(GAMMAS) // len(right))


def rounds(right, gamma):
    """(tokens, passes) after the first token; right: matches of one or more drafters, merged into one tree at the root."""
    i, passes, n = 1, 0, len(right[0][0])
    while i < n:
        gain = 0
        for r in right:
            k = 0
            while k < gamma and i + k < n and r[k][i + k]:
                k += 1
            gain = max(gain, k)
        i, passes = i + gain + 1, passes + 1
    return n - 1, passes


def interval(pairs, rng):
    """Mean tokens per pass and its 95 % interval over prompts."""
    pairs = np.array(pairs, dtype=float)
    draws = rng.integers(0, len(pairs), (2000, len(pairs)))
    ratios = pairs[draws, 0].sum(1) / pairs[draws, 1].sum(1)
    return pairs[:, 0].sum() / pairs[:, 1].sum(), *np.quantile(ratios, (.025, .975))


def main():
    p = arguments(__doc__)
    p.add_argument("target")
    p.add_argument("out")
    p.add_argument("drafters", nargs="*")
    p.add_argument("--prompts", nargs="+", required=True)
    p.add_argument("--count", type=int, default=100, help="prompts of each file")
    p.add_argument("--new", type=int, default=128, help="tokens per answer")
    p.add_argument("--longest", type=int, default=320, help="largest number of tokens of a prompt; longer prompts are left out")
    p.add_argument("--vocab", help="needed if TARGET is not a GGUF file")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--texts", required=True, help="folder for the target's answers; existing answers are used")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    target, coder, rng = load(a.target), Coder(a.vocab or a.target), np.random.default_rng(2)
    names = dict(d.split("=", 1) for d in a.drafters)
    nets = {n: load(path, target) for n, path in names.items() if "+" not in path}
    os.makedirs(a.texts, exist_ok=True)
    with open(a.out, "w", newline="") as f:
        table = csv.writer(f)
        table.writerow(COLUMNS)
        for what, path in (x.split("=", 1) for x in a.prompts):
            asked = questions(path, a.count)
            with open(f"{a.texts}/{what}.jsonl", "w", encoding="utf-8") as q:
                q.writelines(json.dumps({"question": x}) + "\n" for x in asked)
            prompts = [np.array(coder.encode(whole(q)), np.int32) for q in asked]
            prompts = [p for p in prompts if len(p) <= a.longest]
            for hot in (0, 1):
                rows = kept(f"{a.texts}/{what}-{hot}.ids", prompts,
                            lambda: texts(target, prompts, a.new, hot))
                made = [(i, len(p), r) for i, (p, r) in enumerate(zip(prompts, rows)) if len(r) > len(p) + 1]
                right = {n: [] for n in nets}
                for i, start, row in made:
                    added = noise(i, len(row), target.s.n_vocab) if hot else None
                    for n, net in nets.items():
                        right[n].append(matches(net, target, start, row, added))
                for name, path in names.items():
                    parts = [right[n] for n in (path.split("+") if "+" in path else [name])]
                    hits = np.concatenate([m[0][1:] for m in parts[0]])
                    for gamma in GAMMAS:
                        value = interval([rounds(r, gamma) for r in zip(*parts)], rng)
                        table.writerow([what, hot, name, gamma, len(made), len(hits), f"{hits.mean():.4f}",
                                        *(f"{v:.3f}" for v in value)])
                    f.flush()
                    print(what, hot, name, "first guess right", f"{hits.mean():.3f}", flush=True)


if __name__ == "__main__":
    main()
