"""texts.bin, and files of ids beside it, for the scripts of this folder."""
import os, struct

HERE = os.path.dirname(os.path.abspath(__file__))


def write(texts):
    with open(os.path.join(HERE, "texts.bin"), "wb") as f:
        for t in texts:
            f.write(struct.pack("<I", len(t.encode())) + t.encode())


def read():
    data = open(os.path.join(HERE, "texts.bin"), "rb").read()
    while data:
        n = struct.unpack("<I", data[:4])[0]
        yield data[4:4 + n].decode()
        data = data[4 + n:]


def put_ids(name, ids):
    """A line for each text."""
    with open(os.path.join(HERE, name + ".ids"), "w") as f:
        f.writelines(" ".join(map(str, line)) + "\n" for line in ids)
