"""Prints the error of each tensor in quantised files against their source file, as CSV.

    formats.py SOURCE.gguf QUANTISED.gguf ...

One line for each tensor whose format in the first quantised file differs from the source's: that format, and
the relative error in each file (root mean square of the differences divided by that of the values).  The last
line is over all these tensors.  The gguf package decodes the values, not the engine.
"""
import sys

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize


def tensors(path):
    return {t.name: t for t in GGUFReader(path).tensors}


def values(t):
    return np.asarray(dequantize(np.asarray(t.data), t.tensor_type), np.float64).ravel()


def main(source_path, *paths):
    source, files = tensors(source_path), [tensors(p) for p in paths]
    errors, size = np.zeros(len(files)), 0.0
    print(",".join(["tensor", "format", *paths]))
    for name, t in source.items():
        kind = files[0][name].tensor_type
        if kind == t.tensor_type:
            continue
        x = values(t)
        assert all(f[name].tensor_type == kind for f in files), f"{name}: formats differ"
        error = np.array([np.square(values(f[name]) - x).sum() for f in files])
        errors, size = errors + error, size + np.square(x).sum()
        print(",".join([name, kind.name, *("%.6f" % e for e in np.sqrt(error / np.square(x).sum()))]))
    print(",".join(["all", "", *("%.6f" % e for e in np.sqrt(errors / size))]))


if __name__ == "__main__":
    main(*sys.argv[1:])
