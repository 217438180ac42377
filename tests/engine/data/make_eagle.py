"""What the demo model's EAGLE head drafts, in float32 arithmetic of PyTorch: eagle.txt.

    make_eagle.py > eagle.txt                   with the packages that evals/train needs

text ID...          a prompt and what the model says to it, greedily
draft N (ID P)...   behind the first N tokens: what the head guesses, greedily, each guess on the one before; how
                    sure it is of each; the line ends where a guess ends the text, or another was nearly as likely"""

import os
import sys

TRAIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../evals/train")
sys.path.insert(0, TRAIN)

import torch                            # noqa: E402

from bpe import END, EOT, Coder         # noqa: E402
from corpus import ask                  # noqa: E402
from files import load                  # noqa: E402
from model import Cache                 # noqa: E402

PROMPTS = ["A shop sells 12 pens a day for 3 dollars each. How much does it earn in 5 days?",
           "Write a function that returns the largest number of a list.",
           "Tom has 40 marbles. He gives a quarter of them to Ann and 6 to Ben. How many are left?"]
NEW, EVERY, DEPTH, MARGIN = 48, 6, 4, .3


def guesses(target, head, ids, features, n):
    """(token, probability) of a chain behind ids[:n]."""
    cache = Cache(head.s, 1, n + DEPTH, features)
    guess = head(features[:, :n - 1], ids[:, 1:n], cache)[:, -1:]
    for _ in range(DEPTH):
        logits = target.head(guess)[0, 0]
        best, other = logits.topk(2).values.tolist()
        token = int(logits.argmax())
        if best - other < MARGIN or token in (END, EOT):
            return
        yield token, logits.softmax(-1)[token].item()
        guess = head(guess, torch.tensor([[token]]), cache)


@torch.inference_mode()
def main():
    torch.set_num_threads(1)
    model = f"{TRAIN}/models/demo-target-q8_0.gguf"
    target, coder = load(model), Coder(model)
    head = load(f"{TRAIN}/models/demo-eagle-f16.gguf", target)
    for prompt in PROMPTS:
        row = list(map(int, coder.encode(ask(prompt))))
        n_prompt = len(row)
        while len(row) < n_prompt + NEW and row[-1] not in (END, EOT):
            row.append(int(target(torch.tensor([row]))[0, -1].argmax()))
        print("text", *row)
        ids = torch.tensor([row])
        features = target.features(ids)
        for n in range(n_prompt + 1, len(row), EVERY):
            print("draft", n, *(f"{t} {p:.4f}" for t, p in guesses(target, head, ids, features, n)))


if __name__ == "__main__":
    main()
