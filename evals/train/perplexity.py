"""Prints a network's perplexity on documents, each read from its beginning and cut at 256 tokens.

    perplexity.py MODEL NAME=TEXT... [--vocab V]

TEXT is a .ids file (held.ids of corpus.py) or gsm8k's .jsonl, read as chats.  CSV columns: perplexity
of all tokens except the first of each document, and of the assistant's answers only."""

import math

import numpy as np
import torch
import torch.nn.functional as F

from bpe import Coder
from corpus import maths
from files import answer_at, arguments, documents, load
from lessons import batches, padded

LENGTH = 256


@torch.inference_mode()
def losses(model, docs, n_tok=8192):
    """For each document, the loss of each token except the first."""
    for b in batches([*map(len, docs)], n_tok):
        ids = padded(docs[b])
        loss = F.cross_entropy(model(ids[:, :-1]).float().transpose(1, 2), ids[:, 1:], reduction="none")
        yield from (row[:len(d) - 1].cpu().numpy() for row, d in zip(loss, docs[b]))


def read(path, coder, length=LENGTH):
    if not path.endswith(".jsonl"):
        return documents(path, length)
    return [np.array(coder.encode(q + a + "<|im_end|>\n")[:length], np.int32) for q, a in maths(path)]


def main():
    p = arguments(__doc__)
    p.add_argument("model")
    p.add_argument("texts", nargs="+")
    p.add_argument("--vocab", help="needed if MODEL is not a GGUF file")
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    model, coder = load(a.model), Coder(a.vocab or a.model)
    print("text,documents,tokens,perplexity,assistant_tokens,assistant_perplexity")
    for name, path in (t.split("=", 1) for t in a.texts):
        docs = sorted(read(path, coder), key=len)
        each = list(losses(model, docs))
        said = [x[max(answer_at(d) - 1, 0):] for x, d in zip(each, docs)]
        parts = [np.concatenate(some) for some in (each, said)]
        print(name, len(docs), *(f"{len(x)},{math.exp(x.mean()):.3f}" for x in parts), sep=",", flush=True)


if __name__ == "__main__":
    main()
