"""Writes conversations.json and golden.txt beside this file: every template here with every conversation.

golden.txt has a line "template NAME", then one line for each conversation: its name and 16 hex digits, the
FNV-1a hash of the text; "raised" and the hash of the message; or "refused".  full.txt has whole texts for one
conversation, each after a line "template NAME BYTES".  Needs jinja2 3.1.6.
"""
import json
import pathlib

from conversations import conversations
from reference import ENVIRONMENT, render

FULL = "calls-two-answered-dict"


def fnv(text):
    h = 0xCBF29CE484222325
    for b in text.encode():
        h = (h ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def main():
    here = pathlib.Path(__file__).parent
    chats = conversations()
    (here / "conversations.json").write_text(json.dumps(dict(chats), ensure_ascii=False, indent=0) + "\n")
    golden, full, count = [], [], {"text": 0, "raised": 0, "refused": 0}
    for path in sorted(here.glob("*.jinja")):
        template = ENVIRONMENT.from_string(path.read_text())
        golden.append(f"template {path.stem}")
        for name, variables in chats:
            kind, text = render(template, variables)
            count[kind] += 1
            golden.append(f"{name} refused" if kind == "refused" else
                          f"{name} {'raised ' if kind == 'raised' else ''}{fnv(text)}")
            if name == FULL and kind == "text":
                full.append(f"template {path.stem} {len(text.encode())}\n{text}\n")
    (here / "golden.txt").write_text("\n".join(golden) + "\n")
    (here / "full.txt").write_text("".join(full))
    print(count)


main()
