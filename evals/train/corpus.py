"""Makes the demo model's training text: chats about school maths and Python functions, Python code and documentation.

    corpus.py GSM8K_TRAIN.jsonl OUT_FOLDER ROOT...

GSM8K_TRAIN is the train part of openai/grade-school-math (MIT).  ROOT are folders of permissively
licensed Python or reST; the demo used the standard library of CPython 3.11 (PSF) and the packages sympy,
networkx and numpy (BSD).  No evaluation set is read: not gsm8k's test part, not HumanEval, not MT-Bench.

Writes corpus.txt (documents, each ended by <|endoftext|>) and held.txt (held-out documents: one in 25, chosen
by a hash of the question or the piece, before the maths chats are doubled).  The prompts of the chats in each go
to prompts.jsonl, which sample.py gives to a target, and held.jsonl, for comparing drafters before an evaluation
set is used: {"kind", "prompt"} per line."""

import ast
import hashlib
import json
import os
import random
import re
import sys
import textwrap

EOT = "<|endoftext|>"
SKIP = ("/test", "/_vendor", "/__pycache__", "idlelib", "site-packages/", "dist-packages/")
CODE_CHARACTERS = 11_000_000


def ask(user):
    return f"<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"


def digest(text):
    return int.from_bytes(hashlib.md5(text[:200].encode()).digest()[:4])


def held_out(text):
    return digest(text) % 25 == 0


def maths(path):
    """Yields (prompt, answer) without calculator marks such as <<48/2=24>>."""
    with open(path, encoding="utf-8") as f:
        for row in map(json.loads, f):
            answer = re.sub(r"<<.*?>>", "", row["answer"]).replace("#### ", "The answer is ")
            yield ask(row["question"].strip()), answer + "."


def functions(source):
    """Yields (prompt, answer) for each documented function, and in between ("", code) for pieces of code."""
    try:
        tree, lines = ast.parse(source), source.split("\n")
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        doc, code = ast.get_docstring(node), "\n".join(lines[node.lineno - 1:node.end_lineno])
        if not doc or not 80 < len(code) < 1500 or len(doc) > 500:
            continue
        code = textwrap.dedent(code).rstrip()
        first = doc.strip().split("\n\n")[0].replace("\n", " ")
        yield ask(f"Write the Python function {node.name}. {first}"), f"```python\n{code}\n```"
        if random.random() < .3:
            yield "", code + "\n"


def files(root):
    for folder, folders, names in os.walk(root):
        folders.sort()
        if any(part in folder[len(root):] + "/" for part in SKIP):
            continue
        for name in sorted(names):
            path = os.path.join(folder, name)
            if name.endswith((".py", ".rst", ".rst.txt")) and os.path.getsize(path) <= 200_000:
                try:
                    with open(path, encoding="utf-8") as f:
                        yield name, f.read()
                except (UnicodeDecodeError, OSError):
                    continue


def code(roots):
    seen, out = set(), []
    for root in roots:
        for name, text in files(root):
            parts = functions(text) if name.endswith(".py") else (
                ("", text[i:i + 2000]) for i in range(0, min(len(text), 20000), 2000))
            for prompt, answer in parts:
                key = digest(prompt + answer)
                if key not in seen:
                    seen.add(key)
                    out.append((prompt, answer))
    random.shuffle(out)
    size = 0
    for i, (prompt, answer) in enumerate(out):
        size += len(prompt) + len(answer)
        if size > CODE_CHARACTERS:
            return out[:i]
    return out


def main(gsm, folder, *roots):
    random.seed(7)
    sums, pieces = list(maths(gsm)), code(roots)
    keep, held = ([[p for p in part if held_out("".join(p)) == out] for part in (sums, pieces)]
                  for out in (False, True))
    docs = keep[0] * 2 + keep[1]
    random.shuffle(docs)
    os.makedirs(folder, exist_ok=True)
    for name, some in (("corpus.txt", docs), ("held.txt", held[0] + held[1])):
        with open(f"{folder}/{name}", "w", encoding="utf-8") as f:
            for prompt, answer in some:
                f.write(prompt + answer + ("<|im_end|>\n" if prompt else "") + EOT)
    for name, parts in (("prompts.jsonl", keep), ("held.jsonl", held)):
        with open(f"{folder}/{name}", "w", encoding="utf-8") as f:
            for kind, part in zip(("maths", "code"), parts):
                for prompt in dict.fromkeys(p for p, _ in part if p):
                    f.write(json.dumps({"kind": kind, "prompt": prompt}) + "\n")
    print(f"{len(keep[0])} maths chats (twice), {len(keep[1])} Python pieces, "
          f"{sum(len(p + a) for p, a in docs) / 1e6:.1f} M characters; {len(held[0] + held[1])} documents held out")


if __name__ == "__main__":
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
