#!/usr/bin/env python3
"""Writes the first N layers of a GGUF model as a model of its own. As a drafter for the whole model it costs N layers
a token and agrees more often than chance.  Usage: first_layers.py IN.gguf N OUT.gguf"""
import struct
import sys

SIZE = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}    # bytes of each scalar type; type 8 is string, 9 array


class Reader:
    def __init__(self, path):
        self.f = open(path, "rb")

    def get(self, fmt):
        return struct.unpack("<" + fmt, self.f.read(struct.calcsize("<" + fmt)))[0]

    def string(self):
        return self.f.read(self.get("Q"))

    def skip(self, kind):
        if kind == 8:
            self.f.seek(self.get("Q"), 1)
        elif kind == 9:
            item, n = self.get("I"), self.get("Q")
            if item in SIZE:
                self.f.seek(SIZE[item] * n, 1)
            else:
                for _ in range(n):
                    self.skip(item)
        else:
            self.f.seek(SIZE[kind], 1)


def main():
    source, n_layer, target = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    r = Reader(source)
    assert r.f.read(4) == b"GGUF" and r.get("I") == 3
    n_tensor, n_value = r.get("Q"), r.get("Q")
    values, align = [], 32
    for _ in range(n_value):
        start, key, kind = r.f.tell(), r.string(), r.get("I")
        at = r.f.tell()
        r.skip(kind)
        end = r.f.tell()
        r.f.seek(start)
        raw = bytearray(r.f.read(end - start))
        if key.endswith(b".block_count"):
            raw[at - start:at - start + 4] = struct.pack("<I", n_layer)
        if key == b"general.alignment":
            align = struct.unpack("<I", raw[-4:])[0]
        values.append(bytes(raw))
    tensors = []
    for _ in range(n_tensor):
        name, n_dim = r.string(), r.get("I")
        tensors.append((name, [r.get("Q") for _ in range(n_dim)], r.get("I"), r.get("Q")))
    base = -(-r.f.tell() // align) * align
    size = r.f.seek(0, 2) - base
    begins = sorted(t[3] for t in tensors) + [size]
    bytes_of = dict(zip(begins, (b - a for a, b in zip(begins, begins[1:]))))
    kept = [t for t in tensors if not t[0].startswith(b"blk.") or int(t[0].split(b".")[1]) < n_layer]
    with open(target, "wb") as out:
        out.write(b"GGUF" + struct.pack("<IQQ", 3, len(kept), len(values)) + b"".join(values))
        at = 0
        for name, dims, kind, offset in kept:
            out.write(struct.pack("<Q", len(name)) + name + struct.pack("<I", len(dims)))
            out.write(struct.pack("<%dQ" % len(dims), *dims) + struct.pack("<IQ", kind, at))
            at += -(-bytes_of[offset] // align) * align
        for name, dims, kind, offset in kept:
            out.write(b"\0" * (-out.tell() % align))
            r.f.seek(base + offset)
            left = bytes_of[offset]
            while left:
                piece = r.f.read(min(left, 1 << 24))
                out.write(piece)
                left -= len(piece)


main()
