"""Prompts without a file of prompts: questions that the model asks itself, for training drafters on more than one subject.

    questions.py MODEL.gguf ASKED_FOLDER OUT.jsonl

ASKED_FOLDER is teach's, of prompts that end where a user begins to speak: a model that was trained on chats goes on with a question.

    for i in $(seq 300); do echo '{"prompt": "<|im_start|>user\\n"}'; done > open.jsonl
    teach MODEL.gguf open.jsonl asked/ 300 80

With the text before the user's that the model's template writes (`spillway render`) the questions are better.  Half of them, teach's
greedy ones, are all the same; questions that did not end within teach's LENGTH are left out.  OUT has a chat on each line."""

import json

import gguf

from bpe import BYTE
from files import arguments
from lessons import Lessons, known


def main():
    p = arguments(__doc__)
    for name in ("model", "asked", "out"):
        p.add_argument(name)
    a = p.parse_args()
    fields = gguf.GGUFReader(a.model).fields
    tokens, kinds = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type"))
    docs = Lessons(a.asked).read(slice(None))
    longest, asked = max(map(len, docs)), set()
    for d in docs:
        ids = d["id"][int(known(d).argmax()) + 1:]
        if len(d) < longest and all(kinds[i] == gguf.TokenType.NORMAL for i in ids):
            asked.add(bytes(BYTE[c] for i in ids for c in tokens[i]).decode(errors="replace").strip())
    with open(a.out, "w", encoding="utf-8") as f:
        for text in sorted(asked - {""}):
            print(json.dumps({"messages": [{"role": "user", "content": text}]}), file=f)


if __name__ == "__main__":
    main()
